// LFM 2 VL, which also sees: of such a file, the part that reads and writes text.
import { textPart } from "../design/family.ts";
import { lfm2 } from "./lfm2.ts";

export const lfm2Vl = textPart(lfm2);
