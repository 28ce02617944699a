// Looks for a newer page every few seconds and puts its contents in the place of this one's.
"use strict";
(() => {
  const line = document.getElementById("live");
  const every = Number(line.dataset.every) * 1000;
  let last = null;

  function say(text, bad) {
    line.className = bad ? "bad" : "";
    line.querySelector("span").textContent = text;
  }

  async function look() {
    if (document.hidden) return;
    try {
      const answer = await fetch("/", { cache: "no-cache" });
      const tag = answer.headers.get("etag");
      if (!tag) throw new Error("not the page");
      if (tag !== last) {
        const found = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.querySelector("main").replaceWith(document.adoptNode(found.querySelector("main")));
        document.title = found.title;
        last = tag;
        line.dataset.said = found.getElementById("live").querySelector("span").textContent;
      }
      const time = `${new Date().toISOString().slice(11, 19)} UTC`;
      say(answer.ok ? `Live, looked at ${time}` : `${line.dataset.said} Looked at ${time}.`, !answer.ok);
    } catch {
      say("No answer from the program that shows this page. What is shown is what it said last.", true);
    }
  }

  document.addEventListener("visibilitychange", look);
  setInterval(look, every);
  look();
})();
