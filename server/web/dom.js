"use strict";
// The only ways in which this page makes elements. Text becomes text nodes; no string is ever read
// as markup, which the policy also forbids (require-trusted-types-for).

const $ = (id) => document.getElementById(id);

// el("a.link", { href, onclick }, "text", node, null): names with "on" are listeners, others of
// an element's properties or attributes; children that are null or false are left out.
function el(kind, props, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length > 0) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  fill(node, ...children);
  return node;
}

function fill(node, ...children) {
  node.replaceChildren(
    ...children
      .flat()
      .filter((c) => c !== null && c !== undefined && c !== false)
      .map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))),
  );
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  return fill(node, ...children);
}

let toastTimer = 0;

function toast(text) {
  const node = $("toast");
  node.textContent = text;
  node.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => {
    node.hidden = true;
  }, 6000);
}

async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Pages of plain http from elsewhere have no clipboard.
    const area = el("textarea", { value: text, className: "offscreen" });
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Not copied";
    area.remove();
  }
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
}

// The tip under the pointer or the focus: `lines` are texts.
function showTip(anchor, lines) {
  const tip = $("tip");
  fill(tip, ...lines.map((line) => el("div", null, line)));
  tip.hidden = false;
  const box = anchor.getBoundingClientRect();
  const left = Math.min(Math.max(4, box.left), window.innerWidth - tip.offsetWidth - 4);
  const below = box.bottom + 6 + tip.offsetHeight < window.innerHeight;
  tip.style.left = left + "px";
  tip.style.top = (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + "px";
}

function hideTip() {
  $("tip").hidden = true;
}

const numberText = (value, digits = 1) => {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(digits) + " G";
  if (size >= 1e6) return (value / 1e6).toFixed(digits) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(digits) + " k";
  return Number.isInteger(value)
    ? String(value)
    : value.toFixed(size < 10 ? Math.max(digits, 2) : digits);
};

const timeText = (ms) => {
  if (!Number.isFinite(ms)) return "–";
  return ms < 1000 ? numberText(ms, ms < 10 ? 2 : 0) + " ms" : (ms / 1000).toFixed(2) + " s";
};
