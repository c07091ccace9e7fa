// Polling of the API. The last data stays on screen while requests fail.
import { createContext, useCallback, useContext, useEffect, useRef, useState } from "react";

import type { Problem } from "./api";
import { ApiError } from "./api";

export const POLL_INTERVAL_MS = 5000;

export interface RefreshState {
  live: boolean;
  reportUpdate: (at: number) => void;
}

export const RefreshContext = createContext<RefreshState>({ live: true, reportUpdate: () => undefined });

export interface Polled<T> {
  data: T | null;
  problem: Problem | null;
  reload: () => void;
}

export function toProblem(error: unknown): Problem {
  if (error instanceof ApiError) return error.problem;
  return { code: null, message: "The API server cannot be reached. Retrying." };
}

/** Fetch now, every few seconds and whenever `key` changes. A hidden browser tab does not fetch. */
export function usePoll<T>(key: string, fetcher: (signal: AbortSignal) => Promise<T>): Polled<T> {
  const { live, reportUpdate } = useContext(RefreshContext);
  const [latest, setLatest] = useState<{ key: string; data: T } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [reloads, setReloads] = useState(0);
  const fetcherRef = useRef(fetcher);
  fetcherRef.current = fetcher;

  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;

    async function poll(): Promise<void> {
      if (!document.hidden) {
        try {
          const data = await fetcherRef.current(abort.signal);
          if (abort.signal.aborted) return;
          setLatest({ key, data });
          setProblem(null);
          reportUpdate(Date.now());
        } catch (error) {
          if (abort.signal.aborted) return;
          setProblem(toProblem(error));
        }
      }
      if (live) timer = setTimeout(() => void poll(), POLL_INTERVAL_MS);
    }

    setProblem(null);
    void poll();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, reloads, live, reportUpdate]);

  const reload = useCallback(() => setReloads((count) => count + 1), []);
  return { data: latest?.key === key ? latest.data : null, problem, reload };
}
