// Where the programs of the other threads are. This file stands beside their folders, as the bundle does
// inside the executable, so that one relative path holds in both.
export const workerEntry = new URL("./worker/main.ts", import.meta.url);
export const rankEntry = new URL("./ranks/thread.ts", import.meta.url);
export const selfTestEntry = new URL("./self-test/thread.ts", import.meta.url);
export const encoderEntry = new URL("./text/encoder/encoder-thread.ts", import.meta.url);
export const benchEntry = new URL("./bench/thread.ts", import.meta.url);
export const grammarEntry = new URL("./grammar/thread.ts", import.meta.url);
