// The settings sent with every question of a chat.
import { SelectField, TextArea, TextField } from "../parts/form.tsx";
import { type ChatSettings, numberFields } from "./chat.ts";

const names: Readonly<Record<(typeof numberFields)[number], string>> = {
  temperature: "Temperature",
  top_p: "Top p",
  top_k: "Top k",
  min_p: "Min p",
  repetition_penalty: "Repetition penalty",
  max_tokens: "Max tokens",
  seed: "Seed",
};

type Props = { settings: ChatSettings; onChange(settings: Partial<ChatSettings>): void };

export function SettingsPanel({ settings, onChange }: Props) {
  return (
    <aside class="settings" id="chat-settings" aria-label="Settings of the chat">
      <TextArea
        label="System prompt"
        value={settings.system}
        onChange={(system) => onChange({ system })}
      />
      <div class="pairs">
        {numberFields.map((field) => (
          <TextField
            label={names[field]}
            inputMode="decimal"
            placeholder="default"
            value={settings[field]}
            onChange={(value) => onChange({ [field]: value })}
          />
        ))}
        <SelectField
          label="Thinking"
          value={settings.thinking}
          options={[
            ["", "default"],
            ["on", "on"],
            ["off", "off"],
          ]}
          onChange={(thinking) => onChange({ thinking: thinking as ChatSettings["thinking"] })}
        />
      </div>
      <TextArea
        label="JSON schema of the answer"
        isCode
        placeholder={'{ "type": "object", ... }'}
        value={settings.schema}
        onChange={(schema) => onChange({ schema })}
      />
      <TextArea
        label="Tools, as JSON"
        isCode
        placeholder={'[{ "name": "get_weather", "parameters": { ... } }]'}
        value={settings.tools}
        onChange={(tools) => onChange({ tools })}
      />
    </aside>
  );
}
