// Entry point of the bundle: adds the styles and registers the component.
import { App } from "./App";
import css from "./style.css?inline";

const STYLE_ID = "chasqui-style";

if (!document.getElementById(STYLE_ID)) {
  const style = document.createElement("style");
  style.id = STYLE_ID;
  style.textContent = css;
  document.head.append(style);
}

// Airflow finds the component under the name of the React app.
Reflect.set(globalThis, "Chasqui", App);
