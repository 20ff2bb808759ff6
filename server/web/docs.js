// /docs: the operations of /openapi.json, what each is for, what its requests take, and a field to
// try it in.

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.anyOf || schema.oneOf) {
    return [
      ...new Set(
        (schema.anyOf || schema.oneOf).map(typeOf).filter((type) => type !== "null" && type !== ""),
      ),
    ].join(" or ");
  }
  if (schema.type === "array")
    return "array" + (schema.items ? " of " + (typeOf(schema.items) || "any") : "");
  return []
    .concat(schema.type || "any")
    .filter((type) => type !== "null")
    .join(" | ");
}

function boundsOf(schema) {
  const one = schema.anyOf?.[0] || schema;
  const least = one.minimum ?? one.minItems ?? one.minLength;
  const most = one.maximum ?? one.maxItems ?? one.maxLength;
  const shown = (value) =>
    Math.abs(value) >= 1e15 ? (value < 0 ? "-2^63" : "2^63") : String(value);
  if (least === undefined && most === undefined) return "";
  if (most === undefined) return "from " + shown(least);
  return least === undefined ? "at most " + shown(most) : shown(least) + " to " + shown(most);
}

function fieldTable(schema) {
  const required = new Set(schema.required || []);
  const row = ([name, field]) =>
    el(
      "tr",
      null,
      el(
        "td",
        null,
        el("code", null, name),
        required.has(name) && el("span.faint", null, " required"),
      ),
      el("td", null, typeOf(field)),
      el("td", null, boundsOf(field)),
      el("td", null, field.default === undefined ? "" : JSON.stringify(field.default)),
      el("td.text", null, field.description || field.anyOf?.[0]?.description || ""),
    );
  const rows = Object.entries(schema.properties || {});
  rows.sort((a, b) => Number(required.has(b[0])) - Number(required.has(a[0])));
  return el(
    "div.scroll",
    null,
    el(
      "table",
      null,
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          ...["Field", "Type", "Range", "Default", "What it is"].map((name) =>
            el("th", null, name),
          ),
        ),
      ),
      el("tbody", null, ...rows.map(row)),
    ),
  );
}

// As a shell takes it.
const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

function curlOf(method, path, body) {
  const parts = ["curl"];
  if (method !== "get") parts.push("-X " + method.toUpperCase());
  parts.push(quoted(location.origin + BASE.replace(/\/$/, "") + path));
  if (apiKey()) parts.push('-H "Authorization: Bearer $KEY"');
  if (body) parts.push("-H 'Content-Type: application/json' -d " + quoted(body));
  return parts.join(" ");
}

// The text of an answer as it comes, at most so much of it.
const MAX_SHOWN_ANSWER = 100000;

async function showAnswer(node, method, path, body) {
  node.hidden = false;
  node.textContent = "…";
  try {
    const options = { method: method.toUpperCase() };
    if (body) Object.assign(options, { body, headers: { "Content-Type": "application/json" } });
    const response = await request(path.slice(1), options);
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let text = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      text += decoder.decode(part.value, { stream: true });
      node.textContent = text.slice(0, MAX_SHOWN_ANSWER);
      if (text.length > MAX_SHOWN_ANSWER) {
        node.textContent += "\n… and more";
        await reader.cancel();
        return;
      }
    }
    try {
      node.textContent = JSON.stringify(JSON.parse(text), null, 2).slice(0, MAX_SHOWN_ANSWER);
    } catch {
      node.textContent = text || `${response.status} ${response.statusText}`;
    }
  } catch (error) {
    node.textContent = error.message;
  }
}

function tryElement(method, path, example) {
  const model = $("model").value || "MODEL";
  const id = path.includes("{id}") && el("input", { placeholder: "id", ariaLabel: "id in the path" });
  const body =
    example &&
    el("textarea", {
      rows: Math.min(14, JSON.stringify(example, null, 2).split("\n").length),
      spellcheck: false,
      ariaLabel: "Body of the request",
      value: JSON.stringify({ ...example, model }, null, 2),
    });
  const answer = el("pre.answer", { hidden: true, tabIndex: 0, ariaLabel: "Answer" });
  const target = () => path.replace("{id}", encodeURIComponent(id ? id.value.trim() : ""));
  return el(
    "div.try",
    null,
    body,
    el(
      "div.actions",
      null,
      id,
      el(
        "button",
        { type: "button", onclick: () => showAnswer(answer, method, target(), body && body.value) },
        "Send",
      ),
      el(
        "button.plain",
        {
          type: "button",
          onclick: (event) => copyText(curlOf(method, target(), body && body.value), event.target),
        },
        "Copy as curl",
      ),
    ),
    answer,
  );
}

function operationElement(path, method, operation, schemas) {
  const [sentence, example] = EXAMPLES[`${method} ${path}`] || [""];
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const name = body?.$ref?.split("/").pop();
  const schema = name ? schemas[name] : body;
  const answers = Object.entries(operation.responses || {}).map(([status, response]) => {
    const kinds = Object.entries(response.content || {}).map(([type, { schema: s }]) =>
      s && typeOf(s) !== "object" ? `${type} (${typeOf(s)})` : type,
    );
    return el(
      "li",
      null,
      el("code", null, status),
      " ",
      response.description || "",
      kinds.length > 0 && el("span.faint", null, " " + kinds.join(", ")),
    );
  });
  const node = el(
    "details.card.operation",
    { id: method + path },
    el(
      "summary",
      null,
      el(`span.method.${method}`, null, method.toUpperCase()),
      el("code", null, path),
      operation.security && el("span.faint", null, "key"),
      el("span.sentence", null, sentence),
    ),
  );
  // A document has thousands of fields: those of an operation are made when it is opened.
  node.addEventListener("toggle", () => {
    if (node.childElementCount > 1) return;
    node.append(
      ...[
        el("h4", null, example ? "Example" : "Try it"),
        tryElement(method, path, example),
        schema?.properties && el("h4", null, "Request", name && el("span.faint", null, " " + name)),
        schema?.properties && fieldTable(schema),
        el("h4", null, "Answers"),
        el("ul", null, ...answers),
      ].filter(Boolean),
    );
  });
  return node;
}

async function showDocs() {
  const view = $("docs-view");
  let api;
  try {
    api = await apiDocument();
  } catch (error) {
    fill(view, el("div.page", null, el("p.problem", null, error.message)));
    return;
  }
  const nodes = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) =>
      operationElement(path, method, operation, api.components?.schemas || {}),
    ),
  );
  const filter = el("input", {
    type: "search",
    placeholder: "Filter by path",
    ariaLabel: "Filter by path",
    oninput: () => {
      for (const node of nodes) node.hidden = !node.id.includes(filter.value.trim());
    },
  });
  fill(
    view,
    el(
      "div.page",
      null,
      el("h2", null, `${api.info.title} ${api.info.version}`),
      el(
        "p.faint",
        null,
        "From ",
        el("a", { href: BASE + "openapi.json" }, "/openapi.json"),
        ", which says what this server takes and refuses. Where keys are needed: Authorization: Bearer KEY.",
      ),
      filter,
      ...nodes,
    ),
  );
}
