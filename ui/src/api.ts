// Requests to our own API, which sits beside Airflow's and takes the same session.

export interface Problem {
  code: string | null;
  message: string;
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.message);
  }
}

type Params = Record<string, string | number | null | undefined>;

function address(path: string, params: Params): string {
  const url = new URL(`chasqui/api/${path}`, document.baseURI);
  for (const [key, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(key, String(value));
  }
  return url.href;
}

async function read<T>(answer: Response): Promise<T> {
  if (answer.ok) return (await answer.json()) as T;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problemOf(answer.status, body));
}

function problemOf(status: number, body: Record<string, unknown>): Problem {
  const error = body.error as Problem | undefined;
  if (error) return error;
  if (status === 401) return { code: null, message: "Your session has ended: log in again." };
  if (status === 403) {
    return { code: null, message: typeof body.detail === "string" ? body.detail : "You may not do that." };
  }
  return {
    code: null,
    message: typeof body.detail === "string" ? body.detail : `The API server answered ${status}.`,
  };
}

export async function get<T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  return read<T>(await fetch(address(path, params), { credentials: "same-origin", signal }));
}

export async function post<T>(path: string, params: Params, body: unknown): Promise<T> {
  return read<T>(
    await fetch(address(path, params), {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Chasqui-Change": "1" },
      body: JSON.stringify(body),
    }),
  );
}

export function queuePath(connection: string, rest = ""): string {
  return `connections/${encodeURIComponent(connection)}/queue${rest}`;
}
