// Explains a failure in two sentences: the cause, and the action that the user can take.

export interface Advice { title: string; help: string }

const BY_TYPE: Readonly<Record<string, Advice>> = {
  bad_data: { title: "The query is not valid", help: "" },
  invalid_argument: { title: "The query is not valid", help: "" },
  execution: { title: "The query failed", help: "" },
  timeout: { title: "The query took too long", help: "A shorter range, a longer step or a narrower selector costs less." },
  deadline_exceeded: { title: "The query took too long", help: "A shorter range or a narrower selector costs less." },
  canceled: { title: "The query was cancelled", help: "" },
  not_found: { title: "Not found", help: "" },
  unavailable: { title: "Not available", help: "Try again in half a minute." },
  resource_exhausted: { title: "The query exceeds a limit", help: "A shorter range or a narrower selector stays below it." },
  signed_out: { title: "You are signed out", help: "Load this page again to sign in; the address keeps what you see." },
};

const BY_STATUS: Readonly<Record<number, Advice>> = {
  401: { title: "You are not signed in", help: "Load this page again to sign in; the address keeps what you see." },
  403: { title: "You are not allowed to see this", help: "Who runs the server can allow it, perhaps for another tenant." },
  404: { title: "The server does not have this", help: "Another version or another role of it may." },
  413: { title: "The request or its response is too large", help: "A shorter query, a shorter range or a narrower selector is smaller." },
  422: { title: "The query failed", help: "" },
  429: { title: "Too many requests at once", help: "Wait a little, then try again; other queries of this tenant may be running." },
  500: { title: "The server failed", help: "Its log has the reason. The same query may fail again." },
  502: { title: "A server behind this one failed", help: "Try again in half a minute; if it stays, who runs the server can look at its log." },
  503: { title: "The server is busy or not ready", help: "Try again in half a minute." },
  504: { title: "The query took too long", help: "A shorter range, a longer step or a narrower selector costs less." },
};

/** What the type states is nearer to the cause than the status; an unknown type leaves the status. */
export function adviceFor(type: string, status: number): Advice {
  return BY_TYPE[type] ?? BY_STATUS[status] ?? { title: "The server reports an error", help: "" };
}

/** Without a response of the server. */
export const NO_RESPONSE: Advice = { title: "No response", help: "The page looks for the server and shows when it is back; a query that is too large can break the connection, too." };
