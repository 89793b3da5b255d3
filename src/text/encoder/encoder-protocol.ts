// The messages between the main thread and the encoder thread.
import type { TemplateFault } from "../template/template.ts";
import type { TextSource } from "../text-model.ts";
import type { EncodedWork } from "./encode-work.ts";
import type { JsonFault } from "./json-text.ts";

/** A long string that was taken out of the next message (long-strings.ts). */
type LongString = { kind: "text"; text: string };

export type ToEncoder =
  | LongString
  /** `work`: an EncodeWork whose long strings were sent before. */
  | { kind: "encode"; id: number; key: string; source: TextSource; work: unknown }
  /** Parses JSON, given in UTF-8. */
  | { kind: "parse"; id: number; bytes: Uint8Array<ArrayBuffer> }
  | { kind: "cancel"; id: number }
  | { kind: "forget"; path: string };

export type FromEncoder =
  | LongString
  | ({ kind: "encoded"; id: number; ids: Uint32Array<ArrayBuffer> } & EncodedWork)
  /** `value`: its long strings were sent before. */
  | { kind: "parsed"; id: number; value: unknown }
  /** `tokens`: number encoded before the failure. */
  | { kind: "failed"; id: number; tokens: number; failure: EncodeFailure };

export type EncodeFailure =
  | { kind: "too_long" }
  | { kind: "template"; fault: TemplateFault; message: string }
  | { kind: "json"; fault: JsonFault }
  | { kind: "cancelled" }
  | { kind: "other"; message: string };
