// Dead letters: filter, look, choose, and put back or delete what was chosen.
import { useEffect, useState } from "react";

import { get, queuePath } from "./api";
import { ChangeDialog, type Change } from "./ChangeDialog";
import { count, letters, size } from "./format";
import { JobId, useTrail, type Where } from "./lists";
import { Code, Dialog, Empty, Facts, Pager, Pending, To, Trouble, When } from "./parts";
import { usePlace } from "./place";
import { usePoll } from "./poll";
import type { Facets, Letter, LetterPage, WholeLetter } from "./types";

const AGES: [string, string, Record<string, number>][] = [
  ["", "Any age", {}],
  ["newer-3600", "Last hour", { newer_than_s: 3600 }],
  ["newer-86400", "Last day", { newer_than_s: 86400 }],
  ["older-3600", "Older than an hour", { older_than_s: 3600 }],
  ["older-86400", "Older than a day", { older_than_s: 86400 }],
  ["older-604800", "Older than a week", { older_than_s: 604800 }],
];

export type Filter = Record<string, string | number>;

export function LettersTab({ connection, queue, mayChange }: Where & { mayChange: boolean }) {
  const [place, go] = usePlace();
  // The filter stands in the address: a link leads to the same letters, and going back does too.
  const [reason, name, age, sought] = ["reason", "name", "age", "text"].map((key) => place.get(key) ?? "");
  const set = (key: string) => (value: string) => go({ [key]: value }, true);
  const [text, setText] = useState(sought);
  useEffect(() => {
    // The address follows when the typing rests, and so does the search.
    if (text === sought) return;
    const timer = setTimeout(() => go({ text }, true), 300);
    return () => clearTimeout(timer);
  }, [text, sought, go]);
  const batch = place.get("in") ?? "";
  const open = place.get("letter");
  const trail = useTrail<string>();
  const [chosen, setChosen] = useState<Set<string>>(new Set());
  const [change, setChange] = useState<Change | null>(null);

  const filter: Filter = { ...(AGES.find(([key]) => key === age) ?? AGES[0])[2] };
  if (reason) filter.reason = reason;
  if (name) filter.name = name;
  if (sought) filter.text = sought;
  if (batch) filter.batch = batch;
  const filtered = Object.keys(filter).length > 0;
  const key = JSON.stringify(filter);

  const { data, problem, reload } = usePoll(`letters ${connection} ${queue} ${key} ${trail.at}`, (signal) =>
    get<LetterPage>(queuePath(connection, "/letters"), { queue_name: queue, ...filter, cursor: trail.at }, signal),
  );
  const facets = usePoll(`facets ${connection} ${queue}`, (signal) =>
    get<Facets>(queuePath(connection, "/letters/facets"), { queue_name: queue }, signal),
  ).data;
  const { reset } = trail;
  useEffect(() => {
    reset();
    setChosen(new Set());
    // Another filter shows other letters: what was chosen before is out of sight.
    // eslint-disable-next-line
  }, [key]);

  const rows = data?.letters ?? [];
  const all = rows.length > 0 && rows.every((letter) => chosen.has(letter.id));
  const why = mayChange ? undefined : "You need the right to edit this connection";
  return (
    <>
      <div className="cq-filters" role="search" aria-label="Filter dead letters">
        <Choice label="Reason" value={reason} set={set("reason")} options={facets?.reasons ?? []} />
        <Choice label="Name" value={name} set={set("name")} options={facets?.names ?? []} />
        <select value={age} aria-label="Age" onChange={(event) => set("age")(event.target.value)}>
          {AGES.map(([value, label]) => (
            <option key={value} value={value}>{label}</option>
          ))}
        </select>
        <input type="search" value={text} placeholder="Text in the error" aria-label="Text in the error" onChange={(event) => setText(event.target.value)} />
        {batch ? (
          <button type="button" className="cq-chip" onClick={() => go({ in: null }, true)} aria-label={`Remove the filter batch ${batch}`}>
            batch {batch} ×
          </button>
        ) : null}
      </div>
      <div className="cq-actions">
        <span aria-live="polite">
          {chosen.size ? `${count(chosen.size)} selected` : data ? summary(data, filtered) : ""}
        </span>
        {chosen.size ? (
          <button type="button" className="cq-plain" onClick={() => setChosen(new Set())}>Clear</button>
        ) : null}
        <button type="button" disabled={!mayChange || !rows.length} title={why} onClick={() => setChange({ verb: "replay", ids: chosen.size ? [...chosen] : null })}>
          {chosen.size ? "Replay selected" : filtered ? "Replay all that fit" : "Replay all"}
        </button>
        <button type="button" className="cq-danger" disabled={!mayChange || !rows.length} title={why} onClick={() => setChange({ verb: "purge", ids: chosen.size ? [...chosen] : null })}>
          {chosen.size ? "Purge selected" : filtered ? "Purge all that fit" : "Purge all"}
        </button>
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {!data ? (
        <Pending problem={problem} />
      ) : rows.length === 0 ? (
        <Empty title={data.cursor ? "Nothing fits so far" : filtered ? "No letter fits" : "No dead letters"}>
          {data.cursor ? "Go on to the next page to look further." : filtered ? null : "Jobs that used up their attempts, or that nobody can read, end here."}
        </Empty>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table cq-letters">
            <caption className="cq-hidden">Dead letters, newest first</caption>
            <thead>
              <tr>
                <th scope="col" className="cq-check">
                  <input type="checkbox" aria-label="Select all on this page" checked={all} onChange={() => setChosen(toggled(chosen, rows, !all))} />
                </th>
                <th scope="col">Reason</th>
                <th scope="col">Name</th>
                <th scope="col">Error</th>
                <th scope="col">Job</th>
                <th scope="col" className="cq-num">Attempts</th>
                <th scope="col" className="cq-num">Died</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((letter) => (
                <tr key={letter.id} aria-selected={chosen.has(letter.id)}>
                  <td className="cq-check">
                    <input
                      type="checkbox"
                      aria-label={`Select letter ${letter.id}`}
                      checked={chosen.has(letter.id)}
                      onChange={() => setChosen(toggled(chosen, [letter], !chosen.has(letter.id)))}
                    />
                  </td>
                  <td><span className="cq-reason">{letter.reason}</span></td>
                  <td>{letter.name || <span className="cq-zero">–</span>}</td>
                  <td className="cq-error">
                    <button type="button" className="cq-row-open" onClick={() => go({ letter: letter.id })} aria-label={`Open letter ${letter.id}`}>
                      {letter.error ?? "Open"}
                    </button>
                  </td>
                  <td><JobId connection={connection} queue={queue} id={letter.job_id} /></td>
                  <td className="cq-num">{letter.attempts ?? "–"}</td>
                  <td className="cq-num"><When at={letter.at} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager back={trail.back} next={data?.cursor ? () => trail.forward(data.cursor!) : null}>
        Page {trail.page}
      </Pager>
      {open ? (
        <LetterDialog
          connection={connection}
          queue={queue}
          id={open}
          close={() => go({ letter: null })}
          mayChange={mayChange}
          act={(verb) => {
            go({ letter: null });
            setChange({ verb, ids: [open] });
          }}
        />
      ) : null}
      {change ? (
        <ChangeDialog
          connection={connection}
          queue={queue}
          change={change}
          filter={change.ids ? {} : filter}
          close={(done) => {
            setChange(null);
            if (done) {
              setChosen(new Set());
              trail.reset();
              reload();
            }
          }}
        />
      ) : null}
    </>
  );
}

function summary(page: LetterPage, filtered: boolean): string {
  if (!filtered) return letters(page.total);
  const more = page.cursor ? "" : " in all";
  return `${count(page.letters.length)} fit among ${count(page.looked)} looked at${more}; ${letters(page.total)}`;
}

function toggled(chosen: Set<string>, letters: Letter[], on: boolean): Set<string> {
  const next = new Set(chosen);
  for (const letter of letters) {
    if (on) next.add(letter.id);
    else next.delete(letter.id);
  }
  return next;
}

function Choice({ label, value, set, options }: {
  label: string;
  value: string;
  set: (value: string) => void;
  options: [string, number][];
}) {
  const known = options.some(([option]) => option === value);
  return (
    <select value={value} aria-label={label} onChange={(event) => set(event.target.value)}>
      <option value="">Any {label.toLowerCase()}</option>
      {value && !known ? <option value={value}>{value}</option> : null}
      {options.filter(([option]) => option).map(([option, often]) => (
        <option key={option} value={option}>{option} ({count(often)})</option>
      ))}
    </select>
  );
}

function LetterDialog({ connection, queue, id, close, mayChange, act }: Where & {
  id: string;
  close: () => void;
  mayChange: boolean;
  act: (verb: "replay" | "purge") => void;
}) {
  const { data, problem } = usePoll(`letter ${connection} ${queue} ${id}`, (signal) =>
    get<WholeLetter>(queuePath(connection, `/letters/${id}`), { queue_name: queue }, signal),
  );
  return (
    <Dialog title={`Letter ${id}`} close={close} wide>
      {!data ? (
        <Pending problem={problem} />
      ) : (
        <>
          {problem ? <Trouble problem={problem} /> : null}
          <Facts
            facts={[
              ["Job", <JobId key="job" connection={connection} queue={queue} id={data.job_id} />],
              ["Name", data.name],
              ["Reason", <span key="reason" className="cq-reason">{data.reason}</span>],
              ["Attempts", data.attempts],
              ["Died", <When key="died" at={data.at} relative={false} />],
              ["Created", data.created_at ? <When key="created" at={data.created_at} relative={false} /> : null],
              ["Batch", data.batch ? <To key="batch" place={{ conn: connection, queue, batch: data.batch }}>{data.batch}</To> : null],
              ["Size", size(data.size)],
            ]}
          />
          {data.error || data.detail ? (
            <>
              <h3>Error</h3>
              <pre className="cq-code cq-code-bad" tabIndex={0} aria-label="Error">{[data.error, data.detail].filter(Boolean).join("\n")}</pre>
            </>
          ) : null}
          <h3>Payload</h3>
          {data.payload ? <Code text={data.payload} label="Payload" /> : <p className="cq-note">Its bytes are no job: they can be purged, not replayed.</p>}
          <footer>
            <button type="button" disabled={!mayChange || !data.readable} onClick={() => act("replay")}>Replay</button>
            <button type="button" className="cq-danger" disabled={!mayChange} onClick={() => act("purge")}>Purge</button>
          </footer>
        </>
      )}
    </Dialog>
  );
}
