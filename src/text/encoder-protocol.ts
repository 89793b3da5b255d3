// The messages between the main thread and the encoder thread.
import type { EncodedWork, EncodeWork } from "./encode-work.ts";
import type { JsonFault } from "./json-text.ts";
import type { TemplateFault } from "./template.ts";
import type { TextSource } from "./text-model.ts";

export type ToEncoder =
  | { kind: "encode"; id: number; key: string; source: TextSource; work: EncodeWork }
  /** A JSON text, in UTF-8. */
  | { kind: "parse"; id: number; bytes: Uint8Array<ArrayBuffer> }
  | { kind: "cancel"; id: number }
  | { kind: "forget"; path: string };

export type FromEncoder =
  | ({ kind: "encoded"; id: number; ids: Uint32Array<ArrayBuffer> } & EncodedWork)
  | { kind: "parsed"; id: number; value: unknown }
  /** `tokens`: how many were encoded before. */
  | { kind: "failed"; id: number; tokens: number; failure: EncodeFailure };

export type EncodeFailure =
  | { kind: "too_long" }
  | { kind: "template"; fault: TemplateFault; message: string }
  | { kind: "json"; fault: JsonFault }
  | { kind: "cancelled" }
  | { kind: "other"; message: string };
