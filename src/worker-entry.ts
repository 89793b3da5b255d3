// Where the Worker's program is. This file stands beside the folder worker/, as the bundle does inside
// the executable, so that one relative path holds in both.
export const workerEntry = new URL("./worker/main.ts", import.meta.url);
