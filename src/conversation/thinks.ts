// Detects from the chat template whether a model thinks before it answers.
import { formatOf } from "../tools/formats.ts";
import { thinkingOf, thinkTags } from "../tools/reasoning.ts";

export function thinks(template: string): boolean {
  const { format } = formatOf(template);
  const thinking = thinkingOf(template, "", format.thought ?? thinkTags);
  return format.thinks === true || thinking !== "none";
}
