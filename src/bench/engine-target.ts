// Measures the engine in this process, through its own API: no server and no sockets.
import { engineSetup } from "../../ffi/native.ts";
import { EngineClient, EngineError, type EngineHooks, type RankSource } from "../engine/client.ts";
import type { ModelSource } from "../hub/source.ts";
import { openLoadable } from "../serve/load-check.ts";
import type { TextModel } from "../text/text-model.ts";
import type { Sample, Target } from "./target.ts";

export type EngineTargetOptions = {
  source: ModelSource;
  /** Whether prompts go through the chat template. */
  chat: boolean;
  maxBatch: number;
  /** Ranks that the model is divided among; stopped together with the engine. */
  ranks?: (RankSource & { stop(): Promise<void> }) | undefined;
  onActivity?: EngineHooks["onActivity"];
};

export async function openEngineTarget(options: EngineTargetOptions): Promise<Target> {
  const { source, chat, maxBatch, ranks, onActivity } = options;
  const hooks = onActivity ? { onActivity } : {};
  const engine = await EngineClient.start(engineSetup(), hooks, ranks);
  const close = async () => {
    await engine.stop();
    await ranks?.stop();
  };
  const open = async () => {
    const encode = encoder(await openLoadable(source.path, engine), chat);
    await engine.load(source.name, source.path, { maxBatch });
    return { encode, report: await engine.inspect() };
  };
  const { encode, report } = await open().catch(async (error) => {
    await close();
    throw error;
  });
  return {
    about: {
      kind: "engine",
      model: source.name,
      backend: report.backend,
      device: report.deviceName,
      mlxVersion: report.mlxVersion,
    },
    async send({ prompt, maxTokens, priority = "NORMAL" }, onFirst): Promise<Sample> {
      const startMs = performance.now();
      const arrivalsMs: number[] = [];
      const ids = Uint32Array.from(encode(prompt));
      let cached = 0;
      // The request has no stop tokens, so that every answer has the maximum length.
      const request = { prompt: ids, maxTokens, priority, sampling: { temperature: 0 } };
      for await (const event of engine.submit(source.name, request)) {
        if (event.finished === "error") throw new EngineError("a request failed");
        if (event.token === undefined) continue;
        if (arrivalsMs.push(performance.now()) === 1) onFirst?.();
        cached = event.cachedTokens;
      }
      return {
        startMs,
        arrivalsMs,
        endMs: performance.now(),
        promptTokens: ids.length,
        cachedTokens: cached,
        tokens: arrivalsMs.length,
      };
    },
    async memory() {
      const stats = await engine.stats();
      const activeBytes = Math.max(0, ...stats.map((model) => model.activeBytes));
      return { activeBytes, rssBytes: process.memoryUsage.rss() };
    },
    close,
  };
}

function encoder({ tokenizer, chat: template }: TextModel, chat: boolean) {
  return (text: string): number[] => {
    if (!chat) return tokenizer.encode(text, { addSpecialTokens: true, controlTokens: "text" });
    if (!template) throw new Error("the model has no chat template: omit --chat");
    const messages = [{ role: "user", content: text }];
    return template({ messages, addGenerationPrompt: true }).ids;
  };
}
