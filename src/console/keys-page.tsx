// Whose requests the server accepts, what they have used, and the batches of all of them.
import { useState } from "hono/jsx/dom";
import type { KeyBatches } from "../api/batches.ts";
import type { KeyList } from "../api/keys.ts";
import { DataTable, type TableColumn } from "./data-table.tsx";
import { Problem } from "./form.tsx";
import { whole } from "./numbers.ts";
import { usePolled } from "./polled.ts";
import { ask, messageOf } from "./server.ts";

const REFRESH_MS = 2000;

export function KeysPage() {
  const keys = usePolled<KeyList>("/keys", REFRESH_MS);
  const batches = usePolled<KeyBatches>("/batches?limit=100", REFRESH_MS);
  return (
    <div class="page">
      <Problem text={keys.problem || batches.problem} />
      {keys.value && <Keys list={keys.value} />}
      {batches.value && <Batches list={batches.value} onChange={batches.refresh} />}
    </div>
  );
}

type Key = KeyList["keys"][number];

const keyColumns: readonly TableColumn<Key>[] = [
  {
    title: "Name",
    cell: ({ name, owner }) => (
      <>
        {name} {owner && <span class="tag">owner</span>}
      </>
    ),
  },
  { title: "Tier", cell: ({ tier }) => tier },
  { title: "Limits", cell: ({ limits }) => limitsOf(limits) },
  { title: "In progress", isNumber: true, cell: ({ active }) => whole(active) },
  { title: "Requests", isNumber: true, cell: ({ requests }) => whole(requests) },
  { title: "Prompt tokens", isNumber: true, cell: ({ prompt_tokens }) => whole(prompt_tokens) },
  { title: "Cached", isNumber: true, cell: ({ cached_tokens }) => whole(cached_tokens) },
  { title: "Generated", isNumber: true, cell: ({ generated_tokens }) => whole(generated_tokens) },
];

function Keys({ list: { needs_key, keys } }: { list: KeyList }) {
  return (
    <section class="card" aria-label="Keys">
      <header>
        <h2>Keys</h2>
        <p class="note">
          {needs_key ? "" : "The server is open: no key is needed. "}
          <code>mlx-serve keys add</code> makes one. Counts are since the server's start.
        </p>
      </header>
      <DataTable
        label="Table of keys"
        rows={keys}
        columns={keyColumns}
        keyOf={({ name }) => name}
      />
    </section>
  );
}

function limitsOf(limits: Key["limits"]): string {
  const { requests_per_minute: requests, tokens_per_minute: tokens, concurrent } = limits;
  const all = [
    ...(requests === null ? [] : [`${whole(requests)} requests/min`]),
    ...(tokens === null ? [] : [`${whole(tokens)} tokens/min`]),
    ...(concurrent === null ? [] : [`${concurrent} at once`]),
  ];
  return all.length === 0 ? "none" : all.join(", ");
}

type Batch = KeyBatches["batches"][number];

const isOver = ({ status }: Batch) =>
  ["failed", "completed", "expired", "cancelled"].includes(status);

function Batches({ list, onChange }: { list: KeyBatches; onChange(): void }) {
  const [problem, setProblem] = useState("");
  const attempt = (work: Promise<unknown>) =>
    void work.then(onChange, (error) => setProblem(messageOf(error)));
  return (
    <section class="card" aria-label="Batches">
      <h2>Batches</h2>
      <Problem text={problem} />
      {list.batches.length === 0 && <p class="note">There are none.</p>}
      {list.batches.map((batch) => (
        <div class="line" key={batch.id}>
          <div class="grow">
            <p>
              <span class="mono">{batch.id}</span>{" "}
              <span class={`tag ${batch.status === "completed" ? "done" : batch.status}`}>
                {batch.status}
              </span>{" "}
              <span class="note">
                {batch.key} · {batch.endpoint} · {countsOf(batch)} ·{" "}
                {new Date(batch.created_at * 1000).toLocaleString()}
              </span>
            </p>
            <progress
              aria-label={`Progress of ${batch.id}`}
              value={batch.request_counts.completed + batch.request_counts.failed}
              max={batch.request_counts.total || 1}
            />
            {batch.errors?.data.slice(0, 3).map(({ message }) => (
              <p class="problem">{message}</p>
            ))}
          </div>
          {filesOf(batch).map(([name, file]) => (
            <button
              type="button"
              aria-label={`${name} of ${batch.id}`}
              onClick={() => attempt(download(file))}
            >
              {name}
            </button>
          ))}
          {!isOver(batch) && (
            <button
              type="button"
              aria-label={`Cancel ${batch.id}`}
              onClick={() => attempt(ask("/batches/cancel", { body: { id: batch.id } }))}
            >
              Cancel
            </button>
          )}
        </div>
      ))}
    </section>
  );
}

function countsOf({ request_counts: { total, completed, failed } }: Batch): string {
  return `${whole(completed + failed)} of ${whole(total)}${failed > 0 ? `, ${whole(failed)} failed` : ""}`;
}

const filesOf = ({ output_file_id: output, error_file_id: errors }: Batch) => [
  ...(output === null ? [] : [["Results", output] as const]),
  ...(errors === null ? [] : [["Errors", errors] as const]),
];

/** With the key in a header, which a link could not send. */
async function download(file: string): Promise<void> {
  const content = await (await ask(`/v1/files/${encodeURIComponent(file)}/content`)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${file}.jsonl`;
  link.click();
  URL.revokeObjectURL(link.href);
}
