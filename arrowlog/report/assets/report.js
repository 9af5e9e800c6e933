"use strict";
(function () {
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

  // Theme: that of the system until the reader chooses one.
  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.hidden = false;
  showTheme();
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);

  // Filters and limits: a row is shown if it has the text that is asked for, or else if it is among
  // the first rows, until the reader asks for more.
  const rowsOf = (list) => Array.from(list.tBodies ? list.tBodies[0].rows : list.children);
  const textOf = (row) =>
    (row.cells ? Array.from(row.cells, (cell) => cell.textContent).join(" ") : row.textContent)
      .toLowerCase();
  const states = new Map();

  function refresh(list) {
    const state = states.get(list);
    const query = state.query;
    let matching = 0;
    let shown = 0;
    for (const row of rowsOf(list)) {
      const matches = !query || textOf(row).includes(query);
      matching += matches;
      const visible = matches && (query !== "" || state.all || shown < state.limit);
      shown += visible;
      row.hidden = !visible;
    }
    if (state.count) {
      state.count.value = query ? `${matching} of ${rowsOf(list).length}` : "";
    }
    if (state.more) {
      state.more.hidden = query !== "";
      state.more.textContent = state.all ? "Show fewer rows" : `Show all ${rowsOf(list).length} rows`;
      state.more.setAttribute("aria-expanded", String(state.all));
    }
  }

  function stateOf(list) {
    if (!states.has(list)) {
      states.set(list, { query: "", limit: Infinity, all: false, more: null, count: null });
    }
    return states.get(list);
  }

  for (const input of document.querySelectorAll("[data-filter]")) {
    const list = document.getElementById(input.dataset.filter);
    const state = stateOf(list);
    state.count = document.getElementById(`${input.dataset.filter}-n`);
    input.parentElement.hidden = false;
    input.addEventListener("input", () => {
      state.query = input.value.trim().toLowerCase();
      refresh(list);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && input.value) {
        input.value = "";
        state.query = "";
        refresh(list);
        event.preventDefault();
      }
    });
  }

  for (const table of document.querySelectorAll("[data-limit]")) {
    const state = stateOf(table);
    state.limit = Number(table.dataset.limit);
    state.more = document.createElement("button");
    state.more.type = "button";
    state.more.className = "more";
    state.more.setAttribute("aria-controls", table.id);
    state.more.addEventListener("click", () => {
      state.all = !state.all;
      refresh(table);
    });
    table.parentElement.after(state.more);
    refresh(table);
  }

  // Sorting: heads become buttons. Numbers sort as numbers; unknown values come last.
  const valueOf = (cell) => ("v" in cell.dataset ? cell.dataset.v : cell.textContent);

  function compare(a, b, sign) {
    if (a === "" || b === "") return (a === "") - (b === "");
    const x = Number(a);
    const y = Number(b);
    if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
    return sign * a.localeCompare(b, "en", { numeric: true });
  }

  function sort(table, index, order) {
    const sign = order === "ascending" ? 1 : -1;
    const rows = rowsOf(table).map((row, place) => [valueOf(row.cells[index]), place, row]);
    rows.sort((a, b) => compare(a[0], b[0], sign) || a[1] - b[1]);
    table.tBodies[0].append(...rows.map((row) => row[2]));
    Array.from(table.tHead.rows[0].cells).forEach((cell, n) => {
      if (n === index) cell.setAttribute("aria-sort", order);
      else cell.removeAttribute("aria-sort");
    });
    if (states.has(table)) refresh(table);
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    Array.from(table.tHead.rows[0].cells).forEach((cell, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = cell.textContent;
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        const now = cell.getAttribute("aria-sort");
        const first = cell.classList.contains("num") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        sort(table, index, now === first ? other : first);
      });
    });
  }

  // Tips of charts; their data is also in tables.
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const top = event.clientY - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${top < 8 ? event.clientY + 18 : top}px`;
  });

  // The link of the section in view is marked.
  const links = new Map();
  for (const link of document.querySelectorAll("nav a")) links.set(link.hash.slice(1), link);
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id).setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-15% 0px -75% 0px" },
  );
  for (const id of links.keys()) observer.observe(document.getElementById(id));
})();
