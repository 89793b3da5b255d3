// LFM 2 VL: loads only the text decoder.
import { textPart } from "../design/family.ts";
import { lfm2 } from "./lfm2.ts";

export const lfm2Vl = textPart(lfm2);
