// The batches of all keys: progress and results.
import { useState } from "hono/jsx/dom";
import type { KeyBatches } from "../../api/openai/batches.ts";
import { Problem } from "../parts/form.tsx";
import { whole } from "../parts/numbers.ts";
import { ask, messageOf } from "../parts/server.ts";

type Batch = KeyBatches["batches"][number];

const isOver = ({ status }: Batch) =>
  ["failed", "completed", "expired", "cancelled"].includes(status);

export function Batches({ list, onChange }: { list: KeyBatches; onChange(): void }) {
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

/** Downloads a file through fetch, because a link could not send the key in a header. */
async function download(file: string): Promise<void> {
  const content = await (await ask(`/v1/files/${encodeURIComponent(file)}/content`)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${file}.jsonl`;
  link.click();
  URL.revokeObjectURL(link.href);
}
