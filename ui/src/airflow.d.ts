// Modules that the Airflow UI provides at run time, and the import of CSS as text.
declare module "react-router-dom" {
  import type { AnchorHTMLAttributes, ReactNode } from "react";

  export function useSearchParams(): [
    URLSearchParams,
    (next: URLSearchParams, options?: { replace?: boolean }) => void,
  ];
  export function Link(
    props: AnchorHTMLAttributes<HTMLAnchorElement> & { to: string; children?: ReactNode },
  ): ReactNode;
}

declare module "*.css?inline" {
  const text: string;
  export default text;
}
