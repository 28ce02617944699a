"""Colours and measures of the report."""

STYLE = """
:root{--ink:#1b2430;--soft:#5a6675;--line:#d8dee6;--paper:#fff;--card:#f4f6f9;--blue:#1f63c4;--red:#b3261e;--green:#1a7a43;
--amber:#96600a}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf2;--soft:#9fabba;--line:#37414e;--paper:#12171e;--card:#1b222c;
--blue:#7db0ff;--red:#ff8f85;--green:#6fd39b;--amber:#f0b65c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.6rem;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .1rem;overflow-wrap:anywhere}
p,ul{margin:.4rem 0 .8rem}
ul{padding-left:1.2rem}
li{margin:.3rem 0}
.sub,footer,figcaption,small{color:var(--soft);font-size:.875rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.75rem;margin:1.2rem 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.7rem .9rem;display:flex;
flex-direction:column}
.card span{color:var(--soft);font-size:.875rem}
.card b{font-size:1.6rem;line-height:1.3;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;margin:0}
dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
figure{margin:.5rem 0}
svg{width:100%;height:auto;display:block}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
svg .name,svg .value{font-size:12px;fill:var(--ink)}
svg .value{font-weight:600;fill:var(--blue)}
svg .grid{stroke:var(--line)}
svg .curve{fill:none;stroke:var(--blue);stroke-width:2;stroke-linejoin:round}
svg .area{fill:var(--blue);opacity:.12}
svg .budget{stroke:var(--red);stroke-width:1.5}
svg .reserved{stroke:var(--amber);stroke-width:1.5;stroke-dasharray:6 4}
table{border-collapse:collapse;width:100%;font-size:.9rem;margin:.5rem 0}
th,td{text-align:left;vertical-align:top;padding:.45rem .8rem .45rem 0;border-bottom:1px solid var(--line);
overflow-wrap:break-word}
th{color:var(--soft);font-weight:500;white-space:nowrap}
td.n{white-space:nowrap}
td{font-variant-numeric:tabular-nums}
.bad{color:var(--red);font-weight:600}
.good{color:var(--green);font-weight:600}
.alarm{border:2px solid var(--red);border-radius:.5rem;padding:0 .9rem;margin:1.2rem 0}
.alarm h2{color:var(--red);border:0;margin-top:.7rem}
footer{margin-top:2.5rem;border-top:1px solid var(--line)}
@media (max-width:40rem){
body{font-size:15px}
.cards{grid-template-columns:1fr 1fr}
.card b{font-size:1.3rem}
dl{grid-template-columns:1fr}
dd{margin-bottom:.4rem}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
td{display:grid;grid-template-columns:8rem minmax(0,1fr);overflow-wrap:anywhere;gap:.5rem;border:0;padding:.15rem 0}
td.n{white-space:normal}
td::before{content:attr(data-name);color:var(--soft)}
svg text{font-size:20px}
svg .name,svg .value{font-size:21px}
}
@media print{
:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--card:#fff;--blue:#1f63c4;--red:#a00;--green:#063;--amber:#850}
body{font-size:10.5pt}
main{max-width:none;padding:0 1px}
tr,li,figure,.card,.alarm{break-inside:avoid}
h2,h3{break-after:avoid}
}
"""
"""No image, no font and no address: a page that asks nobody for anything."""
