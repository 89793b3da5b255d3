// The command line, with `service` as on the system that TEST_PLATFORM names.
export {};

if (process.argv[2] === "service") {
  Object.defineProperty(process, "platform", { value: process.env.TEST_PLATFORM });
}
await import("../../src/main.ts");
