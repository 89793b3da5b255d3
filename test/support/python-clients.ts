// Python with a vendor's package.
import { pythonWith } from "../../scripts/setup/python.ts";

const OPENAI = "3.49.0";
const ANTHROPIC = "2.8.0";

/** The path of the interpreter. */
export function pythonWithOpenAi(): string {
  return pythonWith(`openai-${OPENAI}`, [`openai==${OPENAI}`]);
}

/** The same. */
export function pythonWithAnthropic(): string {
  return pythonWith(`anthropic-${ANTHROPIC}`, [`anthropic==${ANTHROPIC}`]);
}
