// Tables of running and waiting requests, and of recently ended ones.
import { useState } from "hono/jsx/dom";
import { DataTable, type TableColumn } from "../parts/data-table.tsx";
import { Problem } from "../parts/form.tsx";
import { oneDigit, seconds, whole } from "../parts/numbers.ts";
import { ask, messageOf } from "../parts/server.ts";
import { colourOf } from "./canvas.tsx";
import type { Ended, Running, Story } from "./engine-view.ts";
import { follow } from "./feed.ts";

/** Abbreviates an id to its end, where ids differ. */
const short = (id: string) => (id.length > 14 ? `…${id.slice(-12)}` : id);

function Id({ id }: { id: string }) {
  return (
    <span class="mono" title={id}>
      <span class="dot" style={{ background: colourOf(id) }} /> {short(id)}
    </span>
  );
}

const requestColumns: readonly TableColumn<Running>[] = [
  { title: "Request", cell: ({ id }) => <Id id={id} /> },
  {
    title: "State",
    cell: ({ state, preemptions }) => (
      <>
        <span class={`tag ${state}`}>{state}</span>
        {preemptions > 0 && ` preempted ${preemptions}×`}
      </>
    ),
  },
  { title: "Priority", cell: ({ tier }) => tier },
  { title: "Standing", isNumber: true, cell: ({ standing }) => oneDigit(standing) },
  { title: "Age", isNumber: true, cell: ({ age_ms }) => seconds(age_ms) },
  { title: "Prompt", isNumber: true, cell: ({ prompt_tokens }) => whole(prompt_tokens) },
  { title: "Cached", isNumber: true, cell: ({ cached_tokens }) => whole(cached_tokens) },
  { title: "Generated", isNumber: true, cell: ({ generated_tokens }) => whole(generated_tokens) },
  { title: "Blocks", isNumber: true, cell: ({ blocks }) => whole(blocks) },
];

type Props = { requests: readonly Running[]; followed: string | undefined };

export function RequestTable({ requests, followed }: Props) {
  const [problem, setProblem] = useState("");
  const cancel = (id: string) => {
    setProblem("");
    ask("/requests/cancel", { body: { id } }).catch((error) => setProblem(messageOf(error)));
  };
  const actions: TableColumn<Running> = {
    ...{ title: "Actions", isTitleHidden: true, isNumber: true },
    cell: ({ id }) => (
      <>
        <button
          type="button"
          class="quiet"
          aria-pressed={String(id === followed)}
          aria-label={`Follow ${id}`}
          onClick={() => follow(id === followed ? undefined : id)}
        >
          Follow
        </button>
        <button type="button" class="quiet" aria-label={`Cancel ${id}`} onClick={() => cancel(id)}>
          Cancel
        </button>
      </>
    ),
  };
  return (
    <>
      <Problem text={problem} />
      <DataTable
        label="Table of requests"
        rows={requests}
        columns={[...requestColumns, actions]}
        keyOf={({ id, index }) => `${id} ${index}`}
      />
      {requests.length === 0 && <p class="note">No running or waiting requests.</p>}
    </>
  );
}

const optional = (value: number | undefined, text: (value: number) => string) =>
  value === undefined ? "–" : text(value);

const endedColumns: readonly TableColumn<Ended>[] = [
  { title: "Request", cell: ({ id }) => <Id id={id} /> },
  {
    title: "Outcome",
    cell: ({ outcome, error, finish }) => (
      <>
        <span class={`tag ${outcome}`}>{outcome}</span> {error ?? finish}
      </>
    ),
  },
  { title: "In queue", isNumber: true, cell: ({ queue_ms }) => optional(queue_ms, seconds) },
  { title: "First token", isNumber: true, cell: ({ ttft_ms }) => optional(ttft_ms, seconds) },
  { title: "Whole", isNumber: true, cell: ({ ms }) => seconds(ms) },
  {
    ...{ title: "Prompt (cached)", isNumber: true },
    cell: ({ prompt_tokens, cached_tokens }) =>
      `${optional(prompt_tokens, whole)} (${optional(cached_tokens, whole)})`,
  },
  {
    ...{ title: "Generated", isNumber: true },
    cell: ({ completion_tokens }) => optional(completion_tokens, whole),
  },
];

export function EndedTable({ ended }: { ended: readonly Ended[] }) {
  if (ended.length === 0) return <p class="note">None since this page was opened.</p>;
  return (
    <DataTable
      label="Table of ended requests"
      rows={ended}
      columns={endedColumns}
      keyOf={({ id }) => id}
    />
  );
}

export function StoryView({ story }: { story: Story }) {
  const [first] = story.lines;
  return (
    <section class="card" aria-label="The followed request">
      <header>
        <h2>
          <Id id={story.id} />
        </h2>
        <button type="button" class="quiet" onClick={() => follow(undefined)}>
          Close
        </button>
      </header>
      <p class="note">
        {whole(story.steps)} steps seen, {whole(story.promptTokens)} prompt tokens,{" "}
        {whole(story.decodeTokens)} decoded
      </p>
      <ol class="story">
        {story.lines.map(({ atMs, text }) => (
          <li>
            <span class="note">+{seconds(atMs - first!.atMs)}</span> {text}
          </li>
        ))}
      </ol>
    </section>
  );
}
