/** Commands to services over HTTP. A refusal is an error with the code, the words and the details of the service. */

export interface Problem {
  field: string;
  message: string;
  value?: unknown;
  near?: string[];
}

export interface RefusalDetails {
  field?: string;
  value?: unknown;
  allowed?: string[];
  near?: string[];
  candidates?: string[];
  run?: string;
  state?: string;
  problems?: Problem[];
}

export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: RefusalDetails,
  ) {
    super(message);
  }
}

/** Send a command and return its result. Throws a `Refusal`; code `no_connection` if there is no gateway. */
export async function api<Result>(
  service: string,
  command: string,
  args: object = {},
  signal?: AbortSignal,
): Promise<Result> {
  let answer: Response;
  try {
    answer = await fetch(`/api/${service}/${command}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(args),
      signal: signal ?? null,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, "no_connection", "The gateway does not answer. Is it running? (mosaic status)", {});
  }
  const body = await answer.json().catch((error) => {
    // The connection may end in the middle of an answer, and so may the wish for it.
    if (signal?.aborted) throw error;
    if (answer.ok) throw new Refusal(0, "no_connection", "The gateway's answer broke off. Is it running? (mosaic status)", {});
    return null;
  });
  if (answer.ok) return body as Result;
  throw new Refusal(
    answer.status,
    body?.code ?? "unknown",
    body?.message ?? `The gateway answered ${answer.status}.`,
    body?.details ?? {},
  );
}

/** The words of an error for people. */
export function explain(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
