// The query parameters of the page. They select the view and the filters, so every view has a URL.
import { useCallback } from "react";
import { useSearchParams } from "react-router-dom";

export type QueryParams = Record<string, string | null | undefined>;

export const PAGE_PATH = "/plugin/chasqui";

export function pageUrl(params: QueryParams): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) if (value) search.set(key, value);
  const text = search.toString();
  return text ? `${PAGE_PATH}?${text}` : PAGE_PATH;
}

/** Return the current parameters and a function that changes some of them. */
export function useQueryParams(): [URLSearchParams, (changes: QueryParams, replace?: boolean) => void] {
  const [params, setParams] = useSearchParams();
  const navigate = useCallback(
    (changes: QueryParams, replace = false) => {
      const next = new URLSearchParams(params);
      for (const [key, value] of Object.entries(changes)) {
        if (value) next.set(key, value);
        else next.delete(key);
      }
      setParams(next, { replace });
    },
    [params, setParams],
  );
  return [params, navigate];
}

export function taskUrl(origin: { dag_id: string; run_id: string; task_id: string; map_index: number }): string {
  const encode = encodeURIComponent;
  const base = `/dags/${encode(origin.dag_id)}/runs/${encode(origin.run_id)}/tasks/${encode(origin.task_id)}`;
  return origin.map_index >= 0 ? `${base}/mapped/${origin.map_index}` : base;
}
