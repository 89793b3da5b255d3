import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Health } from "../../../src/api/owner/health.ts";
import { writeChatModel } from "../../support/chat-model.ts";
import { expectUnharmed } from "../../support/fault-checks.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";

const root = mkdtempSync(join(tmpdir(), "health-"));
const [model, elsewhere] = [join(root, "model"), join(root, "elsewhere")];
let server: TestServer;
beforeAll(async () => {
  writeChatModel(model);
  server = await startTestServer({ model });
});
afterAll(async () => {
  await server.stop();
  rmSync(root, { recursive: true });
});

async function health(): Promise<object> {
  const response = await server.get("/health");
  return { code: response.status, ...((await response.json()) as Health) };
}

const ok = { code: 200, status: "ok" };
const down = { code: 503, status: "down", reason: "the model cannot be loaded" };
const load = async () => (await server.post("/models/load", { model: "default" })).status;

/** Once its files are back, a load makes it healthy. */
async function recover(): Promise<void> {
  expect(await health()).toEqual(down);
  expect(await load()).toBe(500);
  expect(await health()).toEqual(down);
  renameSync(elsewhere, model);
  expect(await load()).toBe(200);
  expect(await health()).toEqual(ok);
  await expectUnharmed(server);
}

test("an unloaded model is healthy until loading it again fails", async () => {
  renameSync(model, elsewhere);
  expect(await health()).toEqual(ok);
  expect((await server.post("/models/unload", { model: "default" })).status).toBe(200);
  expect(await health()).toEqual(ok);
  expect(await load()).toBe(500);
  await recover();
});

test("a model that cannot be loaded again after the engine has died is unhealthy", async () => {
  renameSync(model, elsewhere);
  await server.serving.engine.kill();
  while (server.serving.models.isLoading) await Bun.sleep(5);
  await recover();
});
