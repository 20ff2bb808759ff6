// SPDX-License-Identifier: Apache-2.0
// The report's page: style and drawing code; texts of the data are inserted as text nodes only.
#include "server/load/report_html.h"

namespace sluice::load {

const char* const kReportPage = R"page(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>Load test</title>
<style>
:root{--bg:#fbfbfa;--card:#fff;--ink:#1c2430;--soft:#667085;--line:#e4e7ec;--a:#2f6fde;--b:#e07b2a;
--c:#12908e;--d:#8a5cd1;--bad:#cc3d3d;--wait:#c9ced8}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--ink:#e7ebf2;--soft:#98a2b3;
--line:#2b3442;--a:#6fa0ff;--b:#f2a262;--c:#45c4bb;--d:#b797ef;--bad:#f07373;--wait:#485266}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:24px;margin:0 0 2px;font-weight:650;overflow-wrap:anywhere}h2{font-size:15px;margin:0 0 2px;font-weight:620}
.sub{color:var(--soft);margin:0 0 20px;overflow-wrap:anywhere}.note{color:var(--soft);font-size:13px;margin:0 0 8px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:0 0 16px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.tile b{display:block;font-size:25px;font-weight:640;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}.tile.bad b{color:var(--bad)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:16px;margin:0 0 16px}
@media(max-width:560px){.grid{grid-template-columns:1fr}main{padding:16px 10px 40px}
.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile,.card{padding:10px 12px}.tile b{font-size:21px}}
.wide{margin:0 0 16px}svg{display:block;width:100%;height:auto;overflow:visible}
text{fill:var(--soft);font:11.5px system-ui,sans-serif}.axis{stroke:var(--line)}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--soft);margin:0 0 6px}
.key i{display:inline-block;width:18px;height:0;border-top:3px solid;vertical-align:middle;margin-right:6px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:550}th:first-child,td:first-child{text-align:left}
td.msg{white-space:normal;text-align:left;word-break:break-word}
.scroll{overflow-x:auto}.alert{border-color:var(--bad)}.alert h2{color:var(--bad)}
#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--bg);padding:5px 9px;
border-radius:6px;font-size:12.5px;white-space:pre;display:none;z-index:5}
</style></head><body><main id="main"></main><div id="tip"></div>
<script id="data" type="application/json">{{DATA}}</script>
<script>
"use strict";
const D=JSON.parse(document.getElementById("data").textContent);
const main=document.getElementById("main"),tip=document.getElementById("tip");
const NS="http://www.w3.org/2000/svg";
const el=(parent,tag,attributes,text)=>{const e=document.createElement(tag);
 for(const k in attributes||{})e.setAttribute(k,attributes[k]);
 if(text!==undefined)e.textContent=text;parent.appendChild(e);return e};
const sv=(parent,tag,attributes,text)=>{const e=document.createElementNS(NS,tag);
 for(const k in attributes)e.setAttribute(k,attributes[k]);
 if(text!==undefined)e.textContent=text;parent.appendChild(e);return e};
const num=v=>{if(v===0)return"0";const a=Math.abs(v);
 if(a>=1e6)return(v/1e6).toPrecision(3)+" M";if(a>=1e4)return Math.round(v).toLocaleString("en");
 return a>=100?v.toFixed(0):a>=10?v.toFixed(1):a>=0.01?v.toFixed(2):v.toPrecision(2)};
const tick=v=>{const a=Math.abs(v);if(a>=1e6)return +(v/1e6).toPrecision(4)+"M";
 if(a>=1e4)return +(v/1e3).toPrecision(4)+"k";return String(+v.toPrecision(6))};
const ms=v=>v>=1e4?num(v/1e3)+" s":num(v)+" ms";
const color=n=>"var(--"+n+")";
const show=(event,text)=>{tip.textContent=text;tip.style.display="block";
 const w=tip.offsetWidth;tip.style.left=Math.min(event.clientX+14,innerWidth-w-8)+"px";
 tip.style.top=event.clientY+14+"px"};
const hide=()=>{tip.style.display="none"};
const card=(parent,title,note,cls)=>{const c=el(parent,"section",{class:"card "+(cls||"")});
 el(c,"h2",{},title);if(note)el(c,"p",{class:"note"},note);return c};
const key=(parent,items)=>{const k=el(parent,"div",{class:"key"});
 for(const [name,paint,dash] of items){const s=el(k,"span");
 const i=el(s,"i");i.style.borderTopColor=paint;if(dash)i.style.borderTopStyle="dashed";
 s.appendChild(document.createTextNode(name))}};
const ticks=(low,high,count)=>{const raw=(high-low)/count||1,p=10**Math.floor(Math.log10(raw)),
 step=[1,2,5,10].map(f=>f*p).find(s=>s>=raw)||raw,out=[];
 for(let v=Math.ceil(low/step-1e-9)*step;v<=high+step*1e-6;v+=step)out.push(+v.toPrecision(12));return out};
const logTicks=(low,high)=>{const out=[];const few=Math.log10(high/low)>4;
 for(let e=Math.floor(Math.log10(low));e<=Math.ceil(Math.log10(high));e++)
 for(const f of few?[1]:[1,2,5]){const v=f*10**e;if(v>=low*0.999&&v<=high*1.001)out.push(v)}
 return out.length>1?out:ticks(low,high,4)};
// Texts keep their size: a plot is drawn as wide as its card is, and no wider than `width`.
const fit=(parent,width)=>{const s=getComputedStyle(parent);
 return Math.min(width,Math.max(260,parent.clientWidth-parseFloat(s.paddingLeft)-parseFloat(s.paddingRight)))};
const apart=(values,place,least)=>{let last=-1e9;return values.filter(v=>{const at=place(v);
 if(at-last<least)return false;last=at;return true})};
function plot(parent,o){
 const W=fit(parent,o.width||560),H=o.height||270,L=W<420?52:64,R=o.right?(W<420?44:56):14,T=8,B=40;
 const svg=sv(parent,"svg",{viewBox:`0 0 ${W} ${H}`,role:"img","aria-label":o.name});
 const scale=(a,from,to)=>a.log?v=>from+(Math.log(Math.max(v,a.min)/a.min)/Math.log(a.max/a.min||2))*(to-from)
  :v=>from+((v-a.min)/((a.max-a.min)||1))*(to-from);
 const x=scale(o.x,L,W-R),y=scale(o.y,H-B,T);
 for(const v of o.y.log?logTicks(o.y.min,o.y.max):ticks(o.y.min,o.y.max,5)){
  sv(svg,"line",{class:"axis",x1:L,x2:W-R,y1:y(v),y2:y(v)});
  sv(svg,"text",{x:L-7,y:y(v)+4,"text-anchor":"end"},(o.y.format||tick)(v))}
 for(const v of apart(o.x.log?logTicks(o.x.min,o.x.max):ticks(o.x.min,o.x.max,7),x,38))
  sv(svg,"text",{x:x(v),y:H-B+17,"text-anchor":"middle"},(o.x.format||tick)(v));
 sv(svg,"text",{x:(L+W-R)/2,y:H-5,"text-anchor":"middle"},o.x.title);
 sv(svg,"text",{x:13,y:(T+H-B)/2,"text-anchor":"middle",transform:`rotate(-90 13 ${(T+H-B)/2})`},o.y.title);
 let y2=null;
 if(o.right){y2=scale(o.right,H-B,T);
  for(const v of ticks(o.right.min,o.right.max,5))sv(svg,"text",{x:W-R+7,y:y2(v)+4},tick(v));
  sv(svg,"text",{x:W-6,y:(T+H-B)/2,"text-anchor":"middle",transform:`rotate(90 ${W-6} ${(T+H-B)/2})`},o.right.title)}
 const inverse=px=>o.x.log?o.x.min*Math.pow(o.x.max/o.x.min,(px-L)/(W-R-L)):o.x.min+(px-L)/(W-R-L)*(o.x.max-o.x.min);
 if(o.hover){const line=sv(svg,"line",{y1:T,y2:H-B,stroke:color("soft"),"stroke-dasharray":"3 3",visibility:"hidden"});
  svg.addEventListener("mousemove",e=>{const r=svg.getBoundingClientRect(),px=(e.clientX-r.left)/r.width*W;
   if(px<L||px>W-R){hide();line.setAttribute("visibility","hidden");return}
   line.setAttribute("x1",px);line.setAttribute("x2",px);line.setAttribute("visibility","visible");
   show(e,o.hover(inverse(px)))});
  svg.addEventListener("mouseleave",()=>{hide();line.setAttribute("visibility","hidden")})}
 return{svg,x,y,y2,L,R,T,B,W,H}}
const path=(points,x,y)=>points.map((p,i)=>(i?"L":"M")+x(p[0]).toFixed(1)+" "+y(p[1]).toFixed(1)).join("");
const metric=label=>D.metrics.find(m=>m.label===label);
)page"
                                R"page(
function head(){
 document.title="Load test of "+D.model;
 el(main,"h1",{},D.model);
 el(main,"p",{class:"sub"},`${D.server} · ${D.dataset} · ${D.load} · ${num(D.duration)} s · seed ${D.seed} · ${D.date}`);
 const tiles=el(main,"div",{class:"tiles"});
 const tile=(value,name,bad)=>{const t=el(tiles,"div",{class:"tile"+(bad?" bad":"")});
  el(t,"b",{},value);el(t,"span",{},name)};
 tile(D.completed.toLocaleString("en"),"requests completed",D.completed===0);
 tile(D.failed.toLocaleString("en"),"failed",D.failed>0);
 tile(num(D.tokens),"output tokens/s");
 tile(num(D.requests),"requests/s");
 if(D.goodput!==null)tile(num(D.goodput),"requests/s within the goal");
 if(D.completed){const t=metric("TTFT"),p=metric("TPOT");
  tile(ms(t.median),"median time to first token");
  if(p.count)tile(ms(p.median),"median time per token")}
 if(D.interrupted){const c=card(main,"Interrupted","The run was stopped before its end; what follows is what had happened until then.","wide alert")}
 if(D.errors.length){const c=card(main,`${D.failed} of ${D.failed+D.completed} requests failed`,"","wide alert");
  const t=el(el(c,"div",{class:"scroll"}),"table"),h=el(t,"tr");
  for(const n of["Kind","Requests","First message"])el(h,"th",n==="First message"?{style:"text-align:left"}:{},n);
  for(const e of D.errors){const r=el(t,"tr");el(r,"td",{},e.kind.replaceAll("_"," "));el(r,"td",{},e.count);
   el(r,"td",{class:"msg"},e.example)}}
 const odd=[];
 if(D.withoutUsage)odd.push(`${D.withoutUsage} answers without usage; their events were counted as tokens.`);
 if(D.disagree)odd.push(`${D.disagree} answers whose usage differs from the number of their events.`);
 if(D.short)odd.push(`${D.short} answers shorter than asked for.`);
 if(odd.length){const c=card(main,"Worth knowing","","wide");for(const o of odd)el(c,"p",{class:"note"},o)}}
function cdf(parent){
 const c=card(parent,"How long requests took","Share of requests that took at most so long. Dashed: counted from the intended start, waiting in the client included.");
 if(!D.curves.length){el(c,"p",{},"No request was completed.");return}
 const paint=["a","a","b","b"].map(color);
 key(c,D.curves.map((v,i)=>[v.label,paint[i],i%2===1]));
 const values=D.curves.flatMap(v=>v.points.map(p=>p[0])).filter(v=>v>0);
 let low=values.length?Math.min(...values):1,high=values.length?Math.max(...values):10;
 low*=.9;high*=1.1;
 const at=(points,v)=>{let s=0;for(const p of points)if(p[0]<=v)s=p[1];return s};
 const P=plot(c,{name:"latency CDF",x:{min:low,max:high,log:high/low>8,title:"ms (log where wide)"},
  y:{min:0,max:100,title:"% of requests"},
  hover:v=>ms(v)+"\n"+D.curves.map(k=>`${at(k.points,v).toFixed(1)} %  ${k.label}`).join("\n")});
 D.curves.forEach((v,i)=>{const first=v.points[0];
  sv(P.svg,"path",{d:path([[first[0],0],...v.points],P.x,P.y),fill:"none",stroke:paint[i],"stroke-width":2,
   "stroke-dasharray":i%2?"5 4":"none"})})}
function timeline(parent){
 const t=D.timeline,n=t.tokens.length,end=n*t.step;
 const c=card(parent,"Over time","Tokens a second (area) and requests under way or waiting in the client (lines).");
 key(c,[["output tokens/s",color("c")],["under way",color("a")],["waiting in the client",color("d"),true],["failures",color("bad")]]);
 const high=(Math.max(...t.tokens)||1)*1.08,many=Math.max(...t.active,...t.waiting,1)*1.08;
 const P=plot(c,{name:"timeline",x:{min:0,max:end,title:"seconds"},y:{min:0,max:high,title:"tokens/s"},
  right:{min:0,max:many,title:"requests"},
  hover:v=>{const i=Math.min(n-1,Math.max(0,Math.floor(v/t.step)));
   return `${v.toFixed(2)} s\n${num(t.tokens[i])} tokens/s\n${num(t.active[i])} under way\n${num(t.waiting[i])} waiting`+(t.failed[i]?`\n${t.failed[i]} failed`:"")}});
 const mid=i=>(i+.5)*t.step;
 const area=t.tokens.map((v,i)=>[mid(i),v]);
 sv(P.svg,"path",{d:path([[0,0],...area,[end,0]],P.x,P.y)+"Z",fill:color("c"),"fill-opacity":.22,stroke:color("c"),"stroke-width":1});
 const line=(values,paint,dash)=>sv(P.svg,"path",{d:path(values.map((v,i)=>[mid(i),v]),P.x,P.y2),fill:"none",stroke:paint,"stroke-width":1.8,"stroke-dasharray":dash});
 if(Math.max(...t.waiting)>0)line(t.waiting,color("d"),"5 4");
 line(t.active,color("a"),"none");
 t.failed.forEach((v,i)=>{if(v)sv(P.svg,"circle",{cx:P.x(mid(i)),cy:P.T+4,r:3,fill:color("bad")})})}
function bars(parent){
 const rows=D.bars;
 const some=rows.length<D.numRecords?`${rows.length} of ${D.numRecords} requests, evenly chosen. `:"";
 const c=card(parent,"Each request",some+"In the order of their intended starts.","wide");
 key(c,[["waiting in the client",color("wait")],["until the first token",color("b")],["tokens",color("c")],["failed",color("bad")]]);
 if(!rows.length){el(c,"p",{},"No request was sent.");return}
 const end=Math.max(...rows.map(r=>r[3]),1e-3),h=Math.max(1.5,Math.min(16,420/rows.length));
 const H=Math.max(60,rows.length*h+48);
 const P=plot(c,{name:"requests",width:1120,height:H,x:{min:0,max:end,title:"seconds"},y:{min:rows.length,max:0,title:"",format:()=>""}});
 rows.forEach((r,i)=>{const y=P.T+(H-P.B-P.T)*i/rows.length,k=(H-P.B-P.T)/rows.length*.82;
  const bar=(from,to,paint)=>{if(to>from)sv(P.svg,"rect",{x:P.x(from),y,width:Math.max(.8,P.x(to)-P.x(from)),height:k,fill:paint})};
  const bad=r[4]!=="none";
  bar(r[0],r[1],color("wait"));
  if(bad)bar(r[1],Math.max(r[3],r[1]+end*.002),color("bad"));
  else{bar(r[1],r[2],color("b"));bar(r[2],r[3],color("c"))}
  const hit=sv(P.svg,"rect",{x:P.L,y,width:P.W-P.R-P.L,height:k,fill:"transparent"});
  hit.addEventListener("mousemove",e=>show(e,`intended ${r[0].toFixed(3)} s\nsent ${r[1].toFixed(3)} s\n`+(bad?`failed at ${r[3].toFixed(3)} s: ${r[4].replaceAll("_"," ")}`:`first token ${r[2].toFixed(3)} s\nend ${r[3].toFixed(3)} s`)));
  hit.addEventListener("mouseleave",hide)})}
function dots(parent){
 const c=card(parent,"Speed of each stream against its wait","One dot a request: tokens a second while it streamed, and time to first token from the intended start.","wide");
 if(!D.dots.length){el(c,"p",{},"No request was completed.");return}
 const xs=D.dots.map(d=>d[0]),ys=D.dots.map(d=>d[1]);
 const low=Math.max(Math.min(...xs)*.9,1e-3),high=Math.max(...xs)*1.1;
 const P=plot(c,{name:"speed against wait",width:1120,height:280,x:{min:low,max:high,log:high/low>8,title:"time to first token, ms"},
  y:{min:0,max:Math.max(...ys,1e-9)*1.1,title:"tokens/s of the stream"}});
 for(const d of D.dots)sv(P.svg,"circle",{cx:P.x(d[0]),cy:P.y(d[1]),r:D.dots.length>300?2:3.2,fill:color("a"),"fill-opacity":.5})}
function sweep(parent){
 const rows=D.sweep;if(!rows.length)return;
 const c=card(parent,"Throughput against latency",`One point a rate; latency is the time to first token from the intended start. Filled: the server kept up.`,"wide");
 key(c,[["median",color("a")],["P"+rows[0].p,color("b")]]);
 const ok=rows.filter(r=>r.requests>0).sort((a,b)=>(a.rate??1e300)-(b.rate??1e300));
 if(ok.length){const ys=ok.flatMap(r=>r.ttft).filter(v=>v>0);
  const P=plot(c,{name:"throughput against latency",width:1120,height:320,x:{min:0,max:Math.max(...ok.map(r=>r.tokens))*1.08,title:"output tokens/s"},
   y:{min:Math.min(...ys)*.8,max:Math.max(...ys)*1.25,log:true,title:"ms"}});
  [["a",0],["b",1]].forEach(([name,i])=>{
   sv(P.svg,"path",{d:path(ok.map(r=>[r.tokens,Math.max(r.ttft[i],1e-3)]),P.x,P.y),fill:"none",stroke:color(name),"stroke-width":2});
   for(const r of ok){const p=sv(P.svg,"circle",{cx:P.x(r.tokens),cy:P.y(Math.max(r.ttft[i],1e-3)),r:5,stroke:color(name),"stroke-width":2,fill:r.sustained?color(name):color("card")});
    p.addEventListener("mousemove",e=>show(e,`offered ${r.rate===null?"all at once":num(r.rate)+" requests/s"}\nanswered ${num(r.requests)} requests/s\n${num(r.tokens)} tokens/s\n${ms(r.ttft[i])}`));
    p.addEventListener("mouseleave",hide)}})}
 const t=el(el(c,"div",{class:"scroll"}),"table"),h=el(t,"tr");
 for(const n of["Offered, requests/s","Answered","Tokens/s","Median TTFT","P"+rows[0].p+" TTFT","Median TPOT","Median E2E","P"+rows[0].p+" E2E","Failed","Kept up"])el(h,"th",{},n);
 for(const r of rows){const l=el(t,"tr");
  for(const v of[r.rate===null?"all at once":num(r.rate),num(r.requests),num(r.tokens),ms(r.ttft[0]),ms(r.ttft[1]),ms(r.tpot),ms(r.e2el[0]),ms(r.e2el[1]),r.failed,r.sustained?"yes":"no"])el(l,"td",{},v)}}
function table(parent){
 const c=card(parent,"Figures in milliseconds",`${D.inputTokens.toLocaleString("en")} input and ${D.outputTokens.toLocaleString("en")} output tokens; at most ${D.peak} requests at a time; the client used ${(100*D.cpu).toFixed(1)} % of one core.`,"wide");
 const t=el(el(c,"div",{class:"scroll"}),"table"),h=el(t,"tr");
 const ps=D.metrics.length?D.metrics[0].percentiles.map(p=>"P"+p[0]):[];
 for(const n of["","Samples","Mean","Median",...ps,"Std","Min","Max"])el(h,"th",{},n);
 for(const m of D.metrics){const r=el(t,"tr");el(r,"td",{},m.header);
  for(const v of[m.count.toLocaleString("en"),...(m.count?[m.mean,m.median,...m.percentiles.map(p=>p[1]),m.std,m.min,m.max].map(num):Array(5+ps.length).fill("–"))])el(r,"td",{},v)}}
function draw(){main.replaceChildren();
head();sweep(main);
const grid=el(main,"div",{class:"grid"});
cdf(grid);timeline(grid);bars(main);
dots(main);table(main)}
draw();
let drawn=innerWidth;
addEventListener("resize",()=>{if(innerWidth!==drawn){drawn=innerWidth;draw()}});
</script></body></html>
)page";

}  // namespace sluice::load
