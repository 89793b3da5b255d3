// Paths of the programs that run on other threads. They are relative to this file or, in the executable, to its
// bundle: the programs' folders (worker, ranks, ...) are beside either, so that the same paths work for both.
export const workerEntry = new URL("./worker/main.ts", import.meta.url);
export const rankEntry = new URL("./ranks/thread.ts", import.meta.url);
export const selfTestEntry = new URL("./self-test/thread.ts", import.meta.url);
export const encoderEntry = new URL("./text/encoder/encoder-thread.ts", import.meta.url);
export const benchEntry = new URL("./bench/thread.ts", import.meta.url);
export const grammarEntry = new URL("./grammar/thread.ts", import.meta.url);
