// Models of a few bytes, as files.

export const json = (value: unknown) => Buffer.from(JSON.stringify(value));

type Tensor = { readonly dtype: string; readonly shape: readonly number[]; readonly bytes: number };

export function safetensors(tensors: Readonly<Record<string, Tensor>>): Buffer {
  let end = 0;
  const entries = Object.entries(tensors).map(([name, { dtype, shape, bytes }]) => {
    const start = end;
    end += bytes;
    return [name, { dtype, shape, data_offsets: [start, end] }];
  });
  const header = json(Object.fromEntries(entries));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header, Buffer.alloc(end)]);
}

/** Texts and 32-bit numbers as metadata, and one tensor of 32 items of Q8_0. */
export function gguf(metadata: Readonly<Record<string, string | number>>, name = "w"): Buffer {
  const u32 = (value: number) => Buffer.from(Uint32Array.of(value).buffer);
  const u64 = (value: number) => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
  const text = (value: string) =>
    Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
  const entries = Object.entries(metadata).map(([key, value]) =>
    typeof value === "string"
      ? Buffer.concat([text(key), u32(8), text(value)])
      : Buffer.concat([text(key), u32(4), u32(value)]),
  );
  const tensor = Buffer.concat([text(name), u32(1), u64(32), u32(8), u64(0)]);
  const start = [Buffer.from("GGUF"), u32(3), u64(1), u64(entries.length)];
  const header = Buffer.concat([...start, ...entries, tensor]);
  return Buffer.concat([header, Buffer.alloc(-header.length & 31), Buffer.alloc(34)]);
}
