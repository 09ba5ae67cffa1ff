import { render } from "preact";
import { Server } from "./api/client.ts";
import { App } from "./app.tsx";
import { splitPath } from "./lib/route.ts";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/shell.css";
import "./style/query.css";

render(<App server={new Server(splitPath(location.pathname).base)} />, document.getElementById("app")!);
