// Where the reader is: it stands in the address, so that every view can be linked to.
import { useCallback } from "react";
import { useSearchParams } from "react-router-dom";

export type Place = Record<string, string | null | undefined>;

export const PAGE = "/plugin/chasqui";

export function pageLink(place: Place): string {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(place)) if (value) params.set(key, value);
  const text = params.toString();
  return text ? `${PAGE}?${text}` : PAGE;
}

export function usePlace(): [URLSearchParams, (change: Place, replace?: boolean) => void] {
  const [params, setParams] = useSearchParams();
  const go = useCallback(
    (change: Place, replace = false) => {
      const next = new URLSearchParams(params);
      for (const [key, value] of Object.entries(change)) {
        if (value) next.set(key, value);
        else next.delete(key);
      }
      setParams(next, { replace });
    },
    [params, setParams],
  );
  return [params, go];
}

export function taskLink(origin: { dag_id: string; run_id: string; task_id: string; map_index: number }): string {
  const part = encodeURIComponent;
  const base = `/dags/${part(origin.dag_id)}/runs/${part(origin.run_id)}/tasks/${part(origin.task_id)}`;
  return origin.map_index >= 0 ? `${base}/mapped/${origin.map_index}` : base;
}
