// Data that a page polls from the server while it is visible.
import { useEffect, useState } from "hono/jsx/dom";
import { askJson, messageOf } from "./server.ts";

export type Polled<T> = { value: T | undefined; problem: string; refresh(): void };

export function usePolled<T>(path: string, everyMs: number): Polled<T> {
  const [value, setValue] = useState<T | undefined>(undefined);
  const [problem, setProblem] = useState("");
  const refresh = () => {
    askJson<T>(path).then(
      (next) => {
        setValue(next);
        setProblem("");
      },
      (error) => setProblem(messageOf(error)),
    );
  };
  useEffect(() => {
    refresh();
    const timer = setInterval(() => document.hidden || refresh(), everyMs);
    return () => clearInterval(timer);
  }, []);
  return { value, problem, refresh };
}
