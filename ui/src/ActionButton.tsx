// A button that changes one thing after a confirmation, and shows the result or the error.
import { useState, type ReactNode } from "react";

import { post, type Problem } from "./api";
import { Dialog, ErrorNotice } from "./components";
import { toProblem } from "./polling";

export function ActionButton({ label, title, path, params, body, danger = false, describeResult, children }: {
  label: string;
  title: string;
  path: string;
  params: Record<string, string>;
  body: unknown;
  danger?: boolean;
  describeResult: (result: string) => string;
  children: ReactNode;
}) {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);

  async function apply(): Promise<void> {
    setBusy(true);
    setProblem(null);
    try {
      const response = await post<{ result?: string }>(path, params, body);
      setDone(describeResult(response.result ?? ""));
    } catch (error) {
      setProblem(toProblem(error));
    } finally {
      setBusy(false);
    }
  }

  function close(): void {
    setOpen(false);
    setDone(null);
    setProblem(null);
  }

  return (
    <>
      <button type="button" className={danger ? "cq-danger" : ""} onClick={() => setOpen(true)}>{label}</button>
      {open ? (
        <Dialog title={title} onClose={close}>
          {done ? <p className="cq-result" role="status">{done}</p> : children}
          {problem ? <ErrorNotice problem={problem} /> : null}
          <footer>
            {done ? (
              <button type="button" className="cq-primary" onClick={close} autoFocus>Close</button>
            ) : (
              <>
                <button type="button" onClick={close}>Keep as it is</button>
                <button
                  type="button"
                  className={danger ? "cq-danger cq-solid" : "cq-primary"}
                  disabled={busy}
                  onClick={() => void apply()}
                >
                  {label}
                </button>
              </>
            )}
          </footer>
        </Dialog>
      ) : null}
    </>
  );
}
