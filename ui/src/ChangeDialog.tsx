// A change is tried dry first, then confirmed, then done step by step with its progress in sight.
import { useEffect, useRef, useState } from "react";

import { post, queuePath, type Problem } from "./api";
import { count, letters } from "./format";
import type { Filter } from "./LettersTab";
import type { Where } from "./lists";
import { Dialog, Loading, Trouble } from "./parts";
import { problemOf } from "./poll";
import type { Step } from "./types";

export interface Change {
  verb: "replay" | "purge";
  ids: string[] | null;
}

interface Tally {
  matched: number;
  moved: number;
  over: number;
  unreadable: number;
  gone: number;
  looked: number;
}

const NOTHING: Tally = { matched: 0, moved: 0, over: 0, unreadable: 0, gone: 0, looked: 0 };

function add(tally: Tally, step: Step): Tally {
  return {
    matched: tally.matched + step.matched,
    moved: tally.moved + step.affected,
    over: tally.over + step.max_replays_reached,
    unreadable: tally.unreadable + step.unreadable,
    gone: tally.gone + step.missing,
    looked: tally.looked + step.looked,
  };
}

type Phase = "trying" | "asking" | "doing" | "done";

export function ChangeDialog({ connection, queue, change, filter, close }: Where & {
  change: Change;
  filter: Filter;
  close: (done: boolean) => void;
}) {
  const [phase, setPhase] = useState<Phase>("trying");
  const [dry, setDry] = useState<Tally>(NOTHING);
  const [done, setDone] = useState<Tally>(NOTHING);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [sure, setSure] = useState(false);
  const until = useRef<string | null>(null);
  const stopped = useRef(false);

  async function walk(dryRun: boolean, set: (tally: Tally) => void): Promise<boolean> {
    let tally = NOTHING;
    let cursor: string | null = null;
    try {
      do {
        const step: Step = await post<Step>(
          queuePath(connection, `/letters/${change.verb}`),
          { queue_name: queue },
          { ids: change.ids, filter, dry_run: dryRun, cursor, until: until.current },
        );
        tally = add(tally, step);
        set(tally);
        cursor = step.cursor;
        until.current ??= step.until;
      } while (cursor && !stopped.current);
      return !stopped.current;
    } catch (error) {
      setProblem(problemOf(error));
      return false;
    }
  }

  useEffect(() => {
    stopped.current = false;
    void walk(true, setDry).then((ended) => {
      if (ended) setPhase("asking");
    });
    return () => {
      stopped.current = true;
    };
    // eslint-disable-next-line
  }, []);

  async function act(): Promise<void> {
    setPhase("doing");
    if (await walk(false, setDone)) setPhase("done");
  }

  const replay = change.verb === "replay";
  const able = replay ? dry.moved : dry.matched;
  return (
    <Dialog title={replay ? "Replay dead letters" : "Purge dead letters"} close={() => close(phase === "doing" || phase === "done")}>
      <p className="cq-note">Queue {queue}{change.ids ? ", the selected letters" : describe(filter)}</p>
      {problem ? <Trouble problem={problem} /> : null}
      {phase === "trying" && !problem ? (
        <>
          <Loading />
          <p aria-live="polite">Dry run: {letters(dry.matched)} of {count(dry.looked)} looked at.</p>
        </>
      ) : null}
      {phase === "asking" ? (
        <>
          <p className="cq-verdict" aria-live="polite">
            Dry run: <b>{letters(able)}</b> {replay ? "would go back on the queue." : "would be deleted for good."}
          </p>
          {replay && dry.unreadable ? <p className="cq-note">{letters(dry.unreadable)} cannot be read and would stay.</p> : null}
          {change.ids && dry.matched < change.ids.length ? <p className="cq-note">{letters(change.ids.length - dry.matched)} were gone already.</p> : null}
          {!replay && able ? (
            <label className="cq-sure">
              <input type="checkbox" checked={sure} onChange={() => setSure(!sure)} />
              They cannot be brought back, and I mean it.
            </label>
          ) : null}
        </>
      ) : null}
      {phase === "doing" || phase === "done" ? (
        <p className="cq-verdict" aria-live="polite" role="status">
          {phase === "done" ? "Done: " : ""}
          <b>{letters(done.moved)}</b> {replay ? "put back" : "deleted"}{phase === "doing" ? ` of ${count(able)}…` : "."}
          {done.over ? ` ${count(done.over)} had used up their replay budget.` : ""}
          {done.gone ? ` ${count(done.gone)} were gone already.` : ""}
        </p>
      ) : null}
      <footer>
        {phase === "done" ? (
          <button type="button" className="cq-primary" onClick={() => close(true)} autoFocus>Close</button>
        ) : (
          <>
            <button type="button" onClick={() => close(phase === "doing")}>{phase === "doing" ? "Stop" : "Cancel"}</button>
            <button
              type="button"
              className={replay ? "cq-primary" : "cq-danger cq-solid"}
              disabled={phase !== "asking" || !able || (!replay && !sure)}
              onClick={() => void act()}
            >
              {replay ? "Replay" : "Purge"} {phase === "asking" ? letters(able) : ""}
            </button>
          </>
        )}
      </footer>
    </Dialog>
  );
}

function describe(filter: Filter): string {
  const words = Object.entries(filter).map(([key, value]) =>
    key === "newer_than_s" ? `newer than ${value} s` : key === "older_than_s" ? `older than ${value} s` : `${key} ${value}`,
  );
  return words.length ? `, letters with ${words.join(", ")}` : ", all letters";
}
