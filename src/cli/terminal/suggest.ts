// Suggests what an unknown word may have meant: the nearest name, or our name for another program's.
import { nearest } from "../../nearest.ts";

/** Words of other programs, and the words here that they may mean. */
const otherWords: Readonly<Record<string, readonly string[]>> = {
  list: ["ls"],
  remove: ["rm", "revoke", "uninstall"],
  delete: ["rm", "revoke", "uninstall"],
  rm: ["revoke", "uninstall"],
  create: ["add"],
  new: ["add"],
  download: ["pull"],
  get: ["pull"],
  chat: ["run"],
  generate: ["run"],
  start: ["serve"],
  server: ["serve"],
  status: ["ps"],
  kill: ["stop"],
  info: ["show"],
  benchmark: ["bench"],
  "-v": ["--version"],
  "-V": ["--version"],
};

/** Returns a suggestion to append to a sentence; an empty text if nothing is similar. */
export function didYouMean(word: string, names: readonly string[]): string {
  const ours = Object.hasOwn(otherWords, word) ? otherWords[word]! : [];
  const meant = ours.find((name) => names.includes(name)) ?? nearest(word, names);
  return meant === undefined ? "" : `; did you mean ${meant}?`;
}
