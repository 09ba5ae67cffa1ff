// Saves a file from the page.

export function saveBlob(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  followLink(url, name);
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Lets the browser download an address of this server, without the page in between. */
export function followLink(url: string, name: string): void {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}
