// Labelled form fields.
import { useId } from "hono/jsx/dom";

export const valueOf = (event: Event) =>
  (event.target as HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement).value;

type FieldProps = {
  label: string;
  value: string;
  onChange(value: string): void;
  placeholder?: string;
};

export function TextField(
  props: FieldProps & { type?: string; inputMode?: "decimal" | "numeric" },
) {
  const id = useId();
  const { label, value, onChange, placeholder = "", type = "text", inputMode } = props;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type={type}
        value={value}
        placeholder={placeholder}
        inputmode={inputMode}
        autocomplete="off"
        onInput={(event: Event) => onChange(valueOf(event))}
      />
    </div>
  );
}

export function TextArea({
  label,
  value,
  onChange,
  placeholder = "",
  isCode = false,
}: FieldProps & { isCode?: boolean }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <textarea
        id={id}
        class={isCode ? "mono" : ""}
        rows={3}
        value={value}
        placeholder={placeholder}
        onInput={(event: Event) => onChange(valueOf(event))}
      />
    </div>
  );
}

/** A select field. Its options are values, or pairs of a value and a label. */
export function SelectField({
  label,
  value,
  options,
  onChange,
}: Omit<FieldProps, "placeholder"> & { options: readonly (string | readonly [string, string])[] }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} onChange={(event: Event) => onChange(valueOf(event))}>
        {options.map((option) => {
          const [name, text] = typeof option === "string" ? [option, option] : option;
          return (
            <option value={name} selected={name === value}>
              {text}
            </option>
          );
        })}
      </select>
    </div>
  );
}

export function Problem({ text }: { text: string }) {
  return text === "" ? null : (
    <p class="problem" role="alert">
      {text}
    </p>
  );
}
