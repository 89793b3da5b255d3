// The state derived from the engine's feed: recent steps, latest engine state, and the log of the followed request.
import type { EngineFeedEvent, StateEvent, StepsEvent } from "../../api/owner/engine.ts";

/** Tokens of one request in a step. */
export type Share = { id: string; promptTokens: number; decodeTokens: number };

export type Step = {
  model: string;
  step: number;
  ms: number;
  atMs: number;
  shares: readonly Share[];
  promptTokens: number;
  decodeTokens: number;
  preempted: number;
};

export type Ended = StepsEvent["ended"][number];
export type Running = StateEvent["requests"][number];

/** Log of the followed request, with the events that this page has received since the user began to follow it. */
export type Story = {
  id: string;
  lines: readonly { atMs: number; text: string }[];
  promptTokens: number;
  decodeTokens: number;
  steps: number;
  /** Whether the request's first token has been decoded. */
  hasDecoded: boolean;
  preemptions: number;
};

export type EngineView = {
  connection: "connecting" | "open" | "closed";
  problem: string;
  state: StateEvent | undefined;
  steps: readonly Step[];
  ended: readonly Ended[];
  /** Number of steps that did not reach the page. */
  lost: number;
  story: Story | undefined;
};

const MAX_STEPS = 300;
const MAX_ENDED = 30;

export function newStory(id: string, { state }: EngineView, atMs: number): Story {
  const own = state?.requests.find((request) => request.id === id);
  const preemptions = preemptionsOf(id, state?.requests ?? []);
  const since = own ? `${own.state}, ${Math.round(own.age_ms)} ms old` : "not seen yet";
  const lines = [{ atMs, text: since }];
  const hasDecoded = own !== undefined && own.generated_tokens > 0;
  return { id, lines, promptTokens: 0, decodeTokens: 0, steps: 0, hasDecoded, preemptions };
}

/** Sums the preemptions of a request over its entries in `requests`: each of its answers has one. */
const preemptionsOf = (id: string, requests: readonly Running[]) =>
  requests.reduce((sum, each) => sum + (each.id === id ? each.preemptions : 0), 0);

/** Applies an event to the view. */
export function after(view: EngineView, event: EngineFeedEvent, atMs: number): EngineView {
  switch (event.type) {
    case "state": {
      const story = view.story && withState(view.story, event, atMs);
      return { ...view, state: event, story };
    }
    case "lost":
      return { ...view, lost: view.lost + event.steps };
    case "steps": {
      // Two overlapping connections may report the same step.
      const isNew = ({ model, step }: { model: string; step: number }) =>
        !view.steps.some((each) => each.step === step && each.model === model);
      const steps = stepsOf(event, atMs).filter(isNew);
      const ended = event.ended.filter(({ id }) => !view.ended.some((each) => each.id === id));
      return {
        ...view,
        steps: [...view.steps, ...steps].slice(-MAX_STEPS),
        ended: [...ended.toReversed(), ...view.ended].slice(0, MAX_ENDED),
        lost: view.lost + event.left_out,
        story: view.story && continued(view.story, steps, ended, atMs),
      };
    }
  }
}

function stepsOf({ requests, steps }: StepsEvent, atMs: number): Step[] {
  // `rows` (the tokens of each request) is absent if it equals that of the same model's previous step.
  const last = new Map<string, readonly Share[]>();
  return steps.map(({ model, step, ms, preempted, rows }) => {
    const shares = rows ? sharesOf(requests, rows) : (last.get(model) ?? []);
    last.set(model, shares);
    return {
      ...{ model, step, ms, preempted, atMs, shares },
      promptTokens: shares.reduce((sum, { promptTokens }) => sum + promptTokens, 0),
      decodeTokens: shares.reduce((sum, { decodeTokens }) => sum + decodeTokens, 0),
    };
  });
}

function sharesOf(requests: readonly string[], rows: readonly number[]): Share[] {
  const shares = new Map<string, Share>();
  for (let at = 0; at < rows.length; at += 3) {
    const [index, tokens, isPrompt] = rows.slice(at, at + 3) as [number, number, number];
    const id = requests[index]!;
    const share = shares.get(id) ?? { id, promptTokens: 0, decodeTokens: 0 };
    share[isPrompt ? "promptTokens" : "decodeTokens"] += tokens;
    shares.set(id, share);
  }
  return [...shares.values()];
}

/** Logs new preemptions of the followed request, from the state event: step events name no preempted requests. */
function withState(story: Story, { requests }: StateEvent, atMs: number): Story {
  const preemptions = preemptionsOf(story.id, requests);
  if (preemptions <= story.preemptions) return story;
  const line = { atMs, text: "preempted: it waits, and will be recomputed" };
  return { ...story, preemptions, lines: [...story.lines, line] };
}

function continued(
  story: Story,
  steps: readonly Step[],
  ended: readonly Ended[],
  atMs: number,
): Story {
  const lines = [...story.lines];
  let { promptTokens, decodeTokens, steps: count, hasDecoded } = story;
  for (const { step, shares } of steps) {
    const own = shares.find(({ id }) => id === story.id);
    if (!own) continue;
    if (own.promptTokens > 0) {
      lines.push({ atMs, text: `step ${step} computes ${own.promptTokens} tokens of the prompt` });
    } else if (!hasDecoded) lines.push({ atMs, text: `step ${step} is its first to decode` });
    promptTokens += own.promptTokens;
    decodeTokens += own.decodeTokens;
    hasDecoded ||= own.decodeTokens > 0;
    count += 1;
  }
  const end = ended.find(({ id }) => id === story.id);
  if (end) lines.push({ atMs, text: endOf(end) });
  return { ...story, lines, promptTokens, decodeTokens, steps: count, hasDecoded };
}

function endOf({ outcome, finish, error, completion_tokens, ms }: Ended): string {
  const why = error ?? finish ?? "";
  const tokens = completion_tokens === undefined ? "" : `, ${completion_tokens} tokens`;
  return `${outcome}${why === "" ? "" : ` (${why})`}${tokens}, after ${Math.round(ms)} ms`;
}
