// Which view is shown: /docs, or the part behind # of /.

const VIEWS = ["chat", "operations", "docs"];
const isDocs = () => /\/docs\/?$/.test(location.pathname);
const operations = new Operations();
const chat = new Chat();
let docsShown = false;

function showView() {
  const view = isDocs() ? "docs" : location.hash === "#operations" ? "operations" : "chat";
  for (const name of VIEWS) {
    $(name + "-view").hidden = name !== view;
    if (name === view) $("tab-" + name).ariaCurrent = "page";
    else $("tab-" + name).removeAttribute("aria-current");
  }
  document.title = { chat: "Sluice", operations: "Sluice: operations", docs: "Sluice: API" }[view];
  $("menu").classList.toggle("off", view !== "chat");
  if (view === "operations") operations.start();
  else operations.stop();
  if (view === "docs" && !docsShown) {
    docsShown = true;
    showDocs();
  }
  if (view === "chat") chat.toEnd();
}

async function checkHealth() {
  const node = $("health");
  try {
    await request("health");
    node.className = "health good";
    node.textContent = "ready";
  } catch (error) {
    node.className = "health bad";
    node.textContent = error.status === 0 ? "not reachable" : "not ready";
    node.title = error.message;
  }
}

const askForKey = () =>
  openSettings({
    onKey: loadModels,
    chat: () => chat.chat,
    focus: "set-key",
    reason: keyReason(),
  });

async function loadModels() {
  try {
    await chat.loadModels();
  } catch (error) {
    if (error.status === 401 && !isDocs()) {
      // A toast would lie behind the dialog.
      if ($("settings-reason")) $("settings-reason").textContent = keyReason();
      else askForKey();
    }
  }
}

chat.onKey = loadModels;
$("open-settings").addEventListener("click", () =>
  openSettings({ onKey: loadModels, chat: () => chat.chat }),
);
$("menu").addEventListener("click", () => {
  chat.showDrawer(!document.body.classList.contains("drawer-open"));
});
$("conversation").addEventListener("click", () => chat.showDrawer(false));
$("brand").href = $("tab-chat").href = BASE + "#chat";
$("tab-operations").href = BASE + "#operations";
$("tab-docs").href = BASE + "docs";
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("settings").open) {
    if (document.body.classList.contains("drawer-open")) chat.showDrawer(false);
    else chat.stop();
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const action = {
    n: () => {
      location.hash = "#chat";
      chat.open(newChat());
    },
    r: () => chat.regenerateLast(),
    s: () => openSettings({ onKey: loadModels, chat: () => chat.chat }),
    1: () => {
      $("tab-chat").click();
    },
    2: () => {
      $("tab-operations").click();
    },
    3: () => {
      $("tab-docs").click();
    },
  }[event.key.toLowerCase()];
  if (action) {
    event.preventDefault();
    action();
  }
});
window.addEventListener("hashchange", showView);
showView();
checkHealth();
setInterval(() => {
  if (document.visibilityState === "visible") checkHealth();
}, 10000);
loadModels();
if (!isDocs()) $("prompt").focus();
