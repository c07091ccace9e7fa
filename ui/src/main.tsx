import { App } from "./App";
import css from "./style.css?inline";

const ID = "chasqui-style";

if (!document.getElementById(ID)) {
  const style = document.createElement("style");
  style.id = ID;
  style.textContent = css;
  document.head.append(style);
}

// Airflow looks for the component under the plugin's name.
Reflect.set(globalThis, "Chasqui", App);
