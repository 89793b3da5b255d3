// The entry point of the console's script.
import { render } from "hono/jsx/dom";
import { App, applyScheme } from "./app.tsx";

applyScheme();
render(<App />, document.body);
