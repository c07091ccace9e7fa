// Requests to the API of the plugin. They use the session of the Airflow UI.

export interface Problem {
  code: string | null;
  message: string;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.message);
  }
}

type Params = Record<string, string | number | null | undefined>;

function apiUrl(path: string, params: Params): string {
  const url = new URL(`chasqui/api/${path}`, document.baseURI);
  for (const [key, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(key, String(value));
  }
  return url.href;
}

async function parseResponse<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, parseProblem(response.status, body));
}

function parseProblem(status: number, body: Record<string, unknown>): Problem {
  const error = body.error as Problem | undefined;
  if (error) return error;
  if (status === 401) return { code: null, message: "Your session has expired. Log in again." };
  if (typeof body.detail === "string") return { code: null, message: body.detail };
  if (status === 403) return { code: null, message: "You do not have permission to do this." };
  return { code: null, message: `The API server returned status ${status}.` };
}

export async function get<T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  return parseResponse<T>(await fetch(apiUrl(path, params), { credentials: "same-origin", signal }));
}

export async function post<T>(path: string, params: Params, body: unknown): Promise<T> {
  return parseResponse<T>(
    await fetch(apiUrl(path, params), {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Chasqui-Change": "1" },
      body: JSON.stringify(body),
    }),
  );
}

export function queuePath(connection: string, suffix = ""): string {
  return `connections/${encodeURIComponent(connection)}/queue${suffix}`;
}
