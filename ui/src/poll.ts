// Data that keeps itself fresh, and stays on screen while the server fails.
import { createContext, useCallback, useContext, useEffect, useRef, useState } from "react";

import type { Problem } from "./api";
import { Refused } from "./api";

export const EVERY_MS = 5000;

export interface Fresh {
  on: boolean;
  note: (at: number) => void;
}

export const FreshContext = createContext<Fresh>({ on: true, note: () => undefined });

export interface Polled<T> {
  data: T | null;
  problem: Problem | null;
  status: number | null;
  reload: () => void;
}

export function problemOf(error: unknown): Problem {
  if (error instanceof Refused) return error.problem;
  return { code: null, message: "The API server cannot be reached. Trying again." };
}

/** Fetch now, every few seconds, and whenever `key` changes; not while nobody looks. */
export function usePoll<T>(key: string, fetcher: (signal: AbortSignal) => Promise<T>): Polled<T> {
  const fresh = useContext(FreshContext);
  const [kept, setKept] = useState<{ key: string; data: T } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [status, setStatus] = useState<number | null>(null);
  const [turn, setTurn] = useState(0);
  const latest = useRef(fetcher);
  latest.current = fetcher;
  const { note, on } = fresh;

  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;

    async function look(): Promise<void> {
      if (!document.hidden) {
        try {
          const data = await latest.current(stop.signal);
          if (stop.signal.aborted) return;
          setKept({ key, data });
          setProblem(null);
          setStatus(200);
          note(Date.now());
        } catch (error) {
          if (stop.signal.aborted) return;
          setProblem(problemOf(error));
          setStatus(error instanceof Refused ? error.status : null);
        }
      }
      if (on) timer = setTimeout(() => void look(), EVERY_MS);
    }

    setProblem(null);
    void look();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, turn, on, note]);

  const reload = useCallback(() => setTurn((before) => before + 1), []);
  return { data: kept?.key === key ? kept.data : null, problem, status, reload };
}
