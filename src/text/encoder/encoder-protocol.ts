// The messages between the main thread and the encoder thread.
import type { TemplateFault } from "../template/template.ts";
import type { TextSource } from "../text-model.ts";
import type { EncodedWork } from "./encode-work.ts";
import type { JsonFault } from "./json-text.ts";

/** A long string that was taken out of the next message (long-strings.ts). */
type LongString = { kind: "text"; text: string };

export type ToEncoder =
  | LongString
  /** `work` is an EncodeWork; its long strings are sent in earlier messages. */
  | { kind: "encode"; id: number; key: string; source: TextSource; work: unknown }
  /** Parses JSON, given in UTF-8. */
  | { kind: "parse"; id: number; bytes: Uint8Array<ArrayBuffer> }
  | { kind: "cancel"; id: number }
  | { kind: "forget"; path: string };

export type FromEncoder =
  | LongString
  | ({ kind: "encoded"; id: number; ids: Uint32Array<ArrayBuffer> } & EncodedWork)
  /** Parsed JSON; the long strings of `value` are sent in earlier messages. */
  | { kind: "parsed"; id: number; value: unknown }
  /** The job failed after `tokens` tokens were encoded. */
  | { kind: "failed"; id: number; tokens: number; failure: EncodeFailure };

export type EncodeFailure =
  | { kind: "too_long" }
  | { kind: "template"; fault: TemplateFault; message: string }
  | { kind: "json"; fault: JsonFault }
  | { kind: "cancelled" }
  | { kind: "other"; message: string };
