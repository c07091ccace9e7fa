// What Airflow's UI lends to its plugins at run time.
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
