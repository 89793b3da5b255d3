// The API keys, their usage, and the batches of all keys.
import { useState } from "hono/jsx/dom";
import type { KeyBatches } from "../../api/openai/batches.ts";
import type { KeyList } from "../../api/owner/keys.ts";
import { DataTable, type TableColumn } from "../parts/data-table.tsx";
import { Problem } from "../parts/form.tsx";
import { whole } from "../parts/numbers.ts";
import { usePolled } from "../parts/polled.ts";
import { ask, messageOf } from "../parts/server.ts";
import { AddKey } from "./add-key.tsx";
import { Batches } from "./batches.tsx";

const REFRESH_MS = 2000;

export function KeysPage() {
  const keys = usePolled<KeyList>("/keys", REFRESH_MS);
  const batches = usePolled<KeyBatches>("/batches?limit=100", REFRESH_MS);
  return (
    <div class="page">
      <Problem text={keys.problem || batches.problem} />
      {keys.value && <Keys list={keys.value} onChange={keys.refresh} />}
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

function Keys({ list: { needs_key, keys }, onChange }: { list: KeyList; onChange(): void }) {
  const [problem, setProblem] = useState("");
  const revoke = (name: string) =>
    ask("/keys/revoke", { body: { name } }).then(onChange, (error) => setProblem(messageOf(error)));
  const actions: TableColumn<Key> = {
    ...{ title: "Actions", isTitleHidden: true, isNumber: true },
    // Keys of the command line are not in the file, so they cannot be revoked here.
    cell: ({ name, owner }) =>
      !owner && <RevokeButton name={name} onRevoke={() => void revoke(name)} />,
  };
  return (
    <section class="card" aria-label="Keys">
      <header>
        <h2>Keys</h2>
        <p class="note">
          {needs_key
            ? "Counts are since the server's start."
            : "The server is open: no key is needed. Start it with an owner's key (--api-key) to add keys here."}
        </p>
      </header>
      <Problem text={problem} />
      <DataTable
        label="Table of keys"
        rows={keys}
        columns={[...keyColumns, actions]}
        keyOf={({ name }) => name}
      />
      {needs_key && <AddKey onChange={onChange} />}
    </section>
  );
}

/** A button that revokes a key after asking for confirmation. */
function RevokeButton({ name, onRevoke }: { name: string; onRevoke(): void }) {
  const [isSure, setSure] = useState(false);
  return isSure ? (
    <>
      <button type="button" class="stop" onClick={onRevoke}>
        Revoke {name}
      </button>
      <button type="button" onClick={() => setSure(false)}>
        Keep
      </button>
    </>
  ) : (
    <button type="button" class="quiet" aria-label={`Revoke ${name}`} onClick={() => setSure(true)}>
      Revoke
    </button>
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
