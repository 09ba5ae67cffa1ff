// The one message the page sends in protobuf: a pprof file requested in JSON would come field by field.

export interface MergeProfileRequest { profileTypeID: string; labelSelector: string; start: string; end: string; profileIdSelector?: readonly string[] }

/** querier.v1.SelectMergeProfileRequest: 1 type, 2 selector, 3 start, 4 end (ms), 7 profile ids. */
export function encodeMergeProfile(r: MergeProfileRequest): Uint8Array<ArrayBuffer> {
  const out: number[] = [];
  text(out, 1, r.profileTypeID);
  text(out, 2, r.labelSelector);
  varint(out, 3 << 3, BigInt(r.start));
  varint(out, 4 << 3, BigInt(r.end));
  for (const id of r.profileIdSelector ?? []) text(out, 7, id);
  return new Uint8Array(out);
}

function text(out: number[], field: number, value: string): void {
  const bytes = new TextEncoder().encode(value);
  varint(out, (field << 3) | 2, BigInt(bytes.length));
  out.push(...bytes);
}

/** A key of one byte, and a number in groups of seven bits. */
function varint(out: number[], key: number, value: bigint): void {
  out.push(key);
  for (; value > 127n; value >>= 7n) out.push(Number(value & 127n) | 128);
  out.push(Number(value));
}
