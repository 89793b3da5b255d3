// Where the console's script begins.
import { render } from "hono/jsx/dom";
import { App, applyScheme } from "./app.tsx";

applyScheme();
render(<App />, document.body);
