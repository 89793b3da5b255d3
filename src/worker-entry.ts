// Paths of programs for other threads, relative to this file or, in the executable, to its bundle. The programs'
// folders (worker, ranks, ...) lie next to this file and next to the bundle, so that the same paths work for both.
export const workerEntry = new URL("./worker/main.ts", import.meta.url);
export const rankEntry = new URL("./ranks/thread.ts", import.meta.url);
export const selfTestEntry = new URL("./self-test/thread.ts", import.meta.url);
export const encoderEntry = new URL("./text/encoder/encoder-thread.ts", import.meta.url);
export const benchEntry = new URL("./bench/thread.ts", import.meta.url);
export const grammarEntry = new URL("./grammar/thread.ts", import.meta.url);
