// The form for a new API key, which is shown only once.
import { useState } from "hono/jsx/dom";
import type { AddKeyResponse } from "../../api/owner/keys.ts";
import { CopyButton } from "../parts/copy-button.tsx";
import { Problem, SelectField, TextField } from "../parts/form.tsx";
import { askJson, messageOf } from "../parts/server.ts";

const limitFields = [
  ["requests_per_minute", "Requests/min"],
  ["tokens_per_minute", "Tokens/min"],
  ["concurrent", "At once"],
] as const;

export function AddKey({ onChange }: { onChange(): void }) {
  const [name, setName] = useState("");
  const [tier, setTier] = useState("NORMAL");
  const [limits, setLimits] = useState<Readonly<Record<string, string>>>({});
  const [made, setMade] = useState<AddKeyResponse | undefined>(undefined);
  const [problem, setProblem] = useState("");
  const add = async () => {
    setProblem("");
    setMade(undefined);
    // Values that are not numbers are sent too, since the server reports them.
    const given = Object.entries(limits).filter(([, value]) => value.trim() !== "");
    const body = {
      ...{ name: name.trim(), tier },
      limits: Object.fromEntries(given.map(([field, value]) => [field, Number(value)])),
    };
    try {
      setMade(await askJson<AddKeyResponse>("/keys", { body }));
      setName("");
    } catch (error) {
      setProblem(messageOf(error));
    }
    onChange();
  };
  return (
    <>
      <div class="line fields">
        <TextField label="Name of a new key" value={name} onChange={setName} />
        <SelectField
          label="Tier"
          value={tier}
          options={["HIGH", "NORMAL", "LOW"]}
          onChange={setTier}
        />
        {limitFields.map(([field, label]) => (
          <TextField
            label={label}
            inputMode="numeric"
            placeholder="no limit"
            value={limits[field] ?? ""}
            onChange={(value) => setLimits({ ...limits, [field]: value })}
          />
        ))}
        <button type="button" class="main" disabled={name.trim() === ""} onClick={() => void add()}>
          Add key
        </button>
      </div>
      <Problem text={problem} />
      {made && <Made made={made} onClose={() => setMade(undefined)} />}
    </>
  );
}

function Made({ made: { name, key }, onClose }: { made: AddKeyResponse; onClose(): void }) {
  return (
    <section class="made" aria-label={`The key of ${name}`}>
      <p role="status">
        The key of {name}, shown this once: <code class="secret">{key}</code>
      </p>
      <CopyButton text={key} />
      <button type="button" class="quiet" onClick={onClose}>
        Close
      </button>
    </section>
  );
}
